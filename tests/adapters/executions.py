"""Run compiled steps as `mindswap verify --execute` does, and print what that shows, as JSON.

python -m tests.adapters.executions CONFIG... [--policy SECTION=YAML] for configurations that one process can build.
"""

import json
import sys

from mindswap.api.execute import execute_config
from mindswap.check.check import load_policy
from mindswap.config.source import load_document
from mindswap.report.effect import execution_to_json, format_execution


def main():
    results = []
    for config in sys.argv[1:]:
        result = execute_config(config, load_document(config), load_policy(config))
        results.append({**execution_to_json(result), "text": format_execution(result)})
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
