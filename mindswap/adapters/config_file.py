"""Configurations of MindFormers as files and as plain data."""

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

import yaml


def write_config(config: Mapping[str, Any], path: Path) -> Path:
    """Write plain data as the YAML that MindFormers reads."""
    path.write_text(yaml.safe_dump(dict(config), sort_keys=False, width=1000), encoding="utf-8")
    return path


def leave_out_checkpoint(config: Mapping[str, Any]) -> None:
    """Let a network be built without weights: legacy models look for the file, which need not be on this machine.

    `load_checkpoint` of `PreTrainedModel` in modeling_utils.py of mindformers 1.9.0 reads nothing if the name is empty.
    """
    model: MutableMapping[str, Any] | None = (config.get("model") or {}).get("model_config")
    if model and model.get("checkpoint_name_or_path"):
        model["checkpoint_name_or_path"] = ""
