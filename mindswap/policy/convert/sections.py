"""A policy -> the sections of a configuration that say it."""

from collections.abc import Mapping
from typing import Any

from mindswap.policy.convert.compare import change_layers
from mindswap.policy.model import ALL_LAYERS, Layers, Policy
from mindswap.policy.schema import RECOMPUTE_FLAGS, SELECT_OPTIONS


def policy_sections(policy: Policy, data: Mapping[str, Any], num_layers: int) -> dict[str, dict[str, Any]]:
    """The sections of a policy with swap enabled, as they are written into a configuration; all layers become True.

    Keys of recompute_config that say what is the default anyway are left out where the file has none.
    """
    whole = Layers(range(num_layers))
    short = change_layers(policy, lambda layers: ALL_LAYERS if layers == whole else layers, SELECT_OPTIONS)
    config = short.to_config()
    sections = {"swap_config": config["swap_config"]}
    present = data.get("recompute_config") or {}
    defaults = {"recompute": None, **dict.fromkeys(SELECT_OPTIONS, False), **RECOMPUTE_FLAGS}
    sections["recompute_config"] = {
        key: value for key, value in config["recompute_config"].items() if key in present or value != defaults[key]
    }
    own = {key: value for key, value in (data.get("mindswap") or {}).items() if key != "output_recompute"}
    own |= config.get("mindswap", {})
    if own or data.get("mindswap"):
        sections["mindswap"] = own
    return sections
