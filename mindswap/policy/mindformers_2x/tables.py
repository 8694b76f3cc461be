"""What can be named in a layer of known 2.x models, from tables: MindFormers 2.x cannot be installed here."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from mindswap.config.nodes import Document
from mindswap.policy.mindformers_2x.match import LayerPaths


@dataclass(frozen=True)
class Model:
    """The layers of a model."""

    layers: tuple[LayerPaths, ...]  # what can be named, layer by layer
    source: str  # where that comes from, for messages


def load_model(document: Document, num_layers: int | None, num_mtp_layers: int = 0) -> Model | None:
    """The layers of the model of a configuration; None if no table has it, as with multi-token prediction."""
    node = document.get("model", "model_type")
    if num_layers is None or num_mtp_layers or node is None:
        return None
    for table in _tables():
        if node.value in table.model_types:
            return Model((table.layer,) * num_layers, f"table {table.family} (mindformers 2.1.0, PyNative)")
    return None


def dense_layer() -> LayerPaths:
    """The layer of models without experts and without latent attention: `TransformerLayer` of 2.x, as in Qwen3."""
    return next(table.layer for table in _tables() if table.family == "qwen3")


def paths_from_outline(outline: dict[str, Any]) -> LayerPaths:
    """What a nested outline of one layer says: `calls`, `methods` and `cells` of each cell."""
    found = tuple(_walk(outline, ""))
    cells = frozenset(path for path, is_cell in found if is_cell)
    return LayerPaths(cells, frozenset(path for path, _ in found) - cells, tuple(path for path, _ in found))


def _walk(outline: dict[str, Any], prefix: str) -> Iterator[tuple[str, bool]]:
    """Paths in upstream's order (`_get_single_layer_whitelist`): callables, methods, then each cell with its own."""
    for name in (*outline.get("calls", ()), *outline.get("methods", ())):
        yield prefix + name, False
    for name, below in outline.get("cells", {}).items():
        yield prefix + name, True
        yield from _walk(below, f"{prefix}{name}.")


class _Table(NamedTuple):
    family: str
    model_types: list[str]
    layer: LayerPaths


@cache
def _tables() -> tuple[_Table, ...]:
    folder = resources.files("mindswap") / "data" / "pynative"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    tables = (json.loads(file.read_text("utf-8")) for file in files)
    return tuple(_Table(table["family"], table["model_types"], paths_from_outline(table["layer"])) for table in tables)
