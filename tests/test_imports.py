"""Imports go one way; MindSpore and MindFormers are behind `adapters/`."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mindswap"

# From what everything builds on to what builds on everything. A part imports itself and those before it.
ORDER = (
    "errors",
    "units",
    "policy",
    "applier",
    "logs",
    "graph",
    "execute",
    "cost",
    "simulate",
    "plan",
    "pynative",
    "datasets",
    "prove",
    "report",
    "adapters",
)
HEAVY = ("mindspore", "mindformers", "torch")


def imports(path: Path) -> list[str]:
    """Names of the modules a file imports, also inside functions."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.append(node.module)
    return found


def files():
    return sorted(path for path in PACKAGE.rglob("*.py"))


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_what_stands_before_it(path):
    if part(path) not in ORDER:
        return  # commands, cli and the public API may import everything
    allowed = ORDER[: ORDER.index(part(path)) + 1]
    for name in imports(path):
        if name.startswith("mindswap."):
            assert name.split(".")[1] in allowed, f"{path}: {name}"


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_adapters_import_mindspore(path):
    if part(path) != "adapters":
        assert [name for name in imports(path) if name.split(".")[0] in HEAVY] == []


def test_the_policy_has_a_fixed_order_too():
    """Within policy/, rules are judged by what was read, and never the other way round."""
    order = [
        ["problem", "cell_tree", "model"],
        ["match", "document"],
        [
            "wording",
            "baselines",
            "pipeline",
            "stage_counts",
            "schema",
            "yaml_parser",
            "plain_data",
            "families",
            "coverage",
        ],
        ["yaml_spans", "yaml_render"],
        ["yaml_editor"],
        ["yaml_source", "settings", "placement", "weight_sharding", "stage_recompute", "rewrite", "megatron"],
        ["read", "rule_context"],
        ["rules"],
        ["normalize"],
        ["pynative"],
        ["check", "stage_form"],
    ]
    rank = {name: index for index, names in enumerate(order) for name in names}
    for path in (PACKAGE / "policy").rglob("*.py"):
        own = path.relative_to(PACKAGE / "policy").parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        for name in imports(path):
            if name.startswith("mindswap.policy."):
                other = name.split(".")[2]
                assert rank[other] < rank[own] or other == own or rank[other] == rank[own], f"{path}: {name}"
