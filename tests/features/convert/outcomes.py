"""What becomes of options of Megatron-LM and MindSpeed, in a few words."""

from collections.abc import Iterator
from typing import Any

from mindswap.config.problem import Level
from mindswap.errors import PolicyError
from mindswap.features.convert import MegatronSource, convert_config
from mindswap.policy.model import Layers
from mindswap.policy.wording import format_layers


def outcome(script: str, family: str) -> list[str]:
    """The settings, one line each, or the errors; warnings are left out."""
    try:
        made = convert_config(None, MegatronSource({}, script, family))
    except PolicyError as error:
        return [f"error: {problem.message}" for problem in error.problems if problem.level is Level.ERROR]
    return [line for section in made.data["sections"].values() for line in _lines(section)]


def _lines(section: dict[str, Any]) -> Iterator[str]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield from (f"{key} {pattern}: {_layers(layers)}" for pattern, layers in value.items())
        elif key == "op_swap":
            yield from (f"op_swap {entry['op_name']}: {_layers(entry['layers'])}" for entry in value)
        elif key == "recompute" and value is not False:
            yield f"recompute: {_layers(value)}"
        elif value is True and "op_swap" not in section:
            yield f"{key}: True"


def _layers(value: list[int] | bool) -> str:
    return format_layers(Layers(None) if value is True else Layers(value))
