"""Layer trees of known model families, from tables that were made with the real MindFormers.

They serve where MindFormers is not installed (a login node) or too slow to build the network.
"""

import json
from functools import cache
from importlib import resources
from typing import Any

from mindswap.policy.cell_tree import CellNode, LayerTrees


def load_layer_trees(model_section: dict[str, Any], num_layers: int) -> LayerTrees | None:
    """The layers of a model by the `model` section of its configuration; None if no variant of a table fits it."""
    names = _architecture_names(model_section)
    model_config = _mapping(model_section.get("model_config"))
    for table in _tables():
        if names.isdisjoint(table["architectures"]):
            continue
        settings = table["defaults"] | {key: model_config[key] for key in table["defaults"] if key in model_config}
        for key, (least, default) in table.get("switches", {}).items():
            settings[key] = _number(model_config.get(key, default)) >= least
        for variant in table["variants"]:
            if all(settings.get(key) == value for key, value in variant["when"].items()):
                made_with = " ".join(f"{name} {version}" for name, version in table["generated_with"].items())
                uses = {name: tuple(users) for name, users in variant.get("uses", {}).items()}
                key, default = table.get("dense", ("", 0))
                num_dense = min(_number(model_config.get(key, default)), num_layers)
                dense = (_tree(variant["dense_tree"]),) * num_dense if num_dense else ()
                layers = (*dense, *(_tree(variant["tree"]),) * (num_layers - num_dense))
                source = f"table {table['family']} ({made_with})"
                return LayerTrees(layers, uses, source, _prediction(table, model_config, layers))
    return None


def _prediction(table: dict[str, Any], config: dict[str, Any], layers: tuple[CellNode, ...]) -> CellNode | None:
    """The layer of multi-token prediction, around one like the last; as in MindFormers there is none or one."""
    if "prediction" not in table or not layers:
        return None
    keys, default, tree = (table["prediction"][name] for name in ("keys", "default", "tree"))
    if not next((_number(config[key]) for key in keys if key in config), default):
        return None
    around = _tree(tree)
    name, last = table["prediction"]["layer"], layers[-1]
    inner = (
        CellNode(child.name, last.type_name, children=last.children) if child.name == name else child
        for child in around.children
    )
    return CellNode("", around.type_name, children=tuple(inner))


@cache
def _tables() -> tuple[dict[str, Any], ...]:
    files = (resources.files("mindswap") / "data" / "families").iterdir()
    texts = {file.name: file.read_text("utf-8") for file in files if file.name.endswith(".json")}
    return tuple(expand_outline(json.loads(texts[name])) for name in sorted(texts))


def expand_outline(table: dict[str, Any]) -> dict[str, Any]:
    """A table with its trees in full, from the outline of a file: every kind of cell once, its children by name.

    `norm:RmsNorm attention=LLamaAttention/2` are two children, a primitive and a cell; behind `/` is the number of the
    kind, where a class has several. `uses` of all variants are with the table.
    """
    cells, common = table["cells"], table["uses"]

    def primitive(name: str, kind: str) -> dict[str, Any]:
        return {"name": name, "type": kind, "primitive": True}

    def tree(name: str, kind: str) -> dict[str, Any]:
        children = [
            tree(*child.split("=")) if "=" in child else primitive(*child.split(":")) for child in cells[kind].split()
        ]
        return {"name": name, "type": kind.partition("/")[0], "children": children}

    def variant(outline: dict[str, Any]) -> dict[str, Any]:
        uses = {path: users.split() for path, users in sorted((common | outline["uses"]).items())}
        return (
            outline | {key: tree("", outline[key]) for key in ("tree", "dense_tree") if key in outline} | {"uses": uses}
        )

    expanded = {key: value for key, value in table.items() if key not in ("cells", "uses")}
    if "prediction" in table:
        expanded["prediction"] = table["prediction"] | {"tree": tree("", table["prediction"]["tree"])}
    return expanded | {"variants": [variant(outline) for outline in table["variants"]]}


def _tree(data: dict[str, Any]) -> CellNode:
    children = tuple(_tree(child) for child in data.get("children", ()))
    return CellNode(data["name"], data["type"], data.get("primitive", False), children)


def _architecture_names(model_section: dict[str, Any]) -> set[str]:
    """Every name the configuration gives its model: legacy `arch.type`, newer `architectures`, `model_type`."""
    model_config = _mapping(model_section.get("model_config"))
    names = [_mapping(model_section.get("arch")).get("type"), model_config.get("model_type")]
    architectures = model_config.get("architectures")
    names += architectures if isinstance(architectures, list) else [architectures]
    return {name for name in names if isinstance(name, str)}


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
