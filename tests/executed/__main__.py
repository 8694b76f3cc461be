"""Run compiled steps and print what that shows, as JSON: python -m tests.executed CONFIG..., of one kind of model."""

import json
import sys
from dataclasses import asdict

from tests.executed.step import execute_config

json.dump([asdict(result) | {"ok": result.is_ok} for result in map(execute_config, sys.argv[1:])], sys.stdout)
