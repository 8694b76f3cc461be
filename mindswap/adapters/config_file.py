"""Configurations of MindFormers as files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

__all__ = ["write_config"]


def write_config(config: Mapping[str, Any], path: Path) -> Path:
    """Write plain data as the YAML that MindFormers reads."""
    path.write_text(yaml.safe_dump(dict(config), sort_keys=False, width=1000), encoding="utf-8")
    return path
