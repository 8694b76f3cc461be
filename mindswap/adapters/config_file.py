"""Configurations of MindFormers as plain data."""

from collections.abc import Mapping, MutableMapping
from typing import Any


def leave_out_checkpoint(config: Mapping[str, Any]) -> None:
    """Let a network be built without weights: legacy models look for the file, which need not be on this machine.

    `load_checkpoint` of `PreTrainedModel` in modeling_utils.py of mindformers 1.9.0 reads nothing if the name is empty.
    """
    model: MutableMapping[str, Any] | None = (config.get("model") or {}).get("model_config")
    if model and model.get("checkpoint_name_or_path"):
        model["checkpoint_name_or_path"] = ""
