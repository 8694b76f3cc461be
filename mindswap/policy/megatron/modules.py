"""Megatron's module names -> operators of a model, from data/megatron/modules.json."""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from mindswap.policy.cell_tree import CellNode, LayerTrees
from mindswap.policy.match import match_pattern
from mindswap.policy.model import Layers


@dataclass(frozen=True)
class NamedOperators:
    """A pattern, and the layers in which a module is what it names."""

    pattern: str
    layers: Layers


def known_modules() -> dict[str, list[str]]:
    """The names that Megatron takes, for `recompute` and for `offload`."""
    return _table()["known"]


def find_operators(module: str, purpose: str, use_legacy: bool, trees: LayerTrees) -> tuple[NamedOperators, ...]:
    """What a module of Megatron is in a model; empty if the model has nothing like it.

    `purpose` is `recompute` or `offload`.
    """
    found = []
    for entry in _modules(purpose, use_legacy).get(module, ()):
        layers = tuple(index for index, tree in enumerate(trees.layers) if _holds(entry, tree))
        if layers:
            is_everywhere = len(layers) == len(trees.layers)
            found.append(NamedOperators(entry["pattern"], Layers(None if is_everywhere else layers)))
    return tuple(found)


def possible_modules(purpose: str, use_legacy: bool, trees: LayerTrees) -> tuple[str, ...]:
    """The names that stand for something in a model."""
    names = _modules(purpose, use_legacy)
    return tuple(name for name in names if find_operators(name, purpose, use_legacy, trees))


def _modules(purpose: str, use_legacy: bool) -> dict[str, list[dict[str, str]]]:
    return _table()["families"]["legacy" if use_legacy else "newer"][purpose]


def _holds(entry: dict[str, str], tree: CellNode) -> bool:
    needed = [entry[key] for key in ("pattern", "needs") if key in entry]
    has_all = all(match_pattern(pattern, tree) for pattern in needed)
    return has_all and not ("unless" in entry and match_pattern(entry["unless"], tree))


@cache
def _table() -> dict[str, Any]:
    return json.loads((resources.files("mindswap") / "data" / "megatron" / "modules.json").read_text("utf-8"))
