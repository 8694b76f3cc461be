"""Results that take a compile, kept on disk under everything that decides them."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from mindswap.config.nodes import Document
from mindswap.graph.analysis.collectives import Collective
from mindswap.graph.analysis.liveness import LayerSample
from mindswap.graph.capture_cache import cached, make_key, open_data_cache
from mindswap.graph.model import Graph, Node, Saved, TensorType
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.model import Policy
from mindswap.rules.machine.software import installed_code
from mindswap.system.environment import COMPILE_VARIABLES

T = TypeVar("T")
# What a compiled network is made of.
GRAPH_CLASSES = (LayerSample, CellNode, Graph, Node, Saved, TensorType, Collective)
# Sections that do not change the step without swap and recompute, but for `mindswap: cpu_stand_ins`.
POLICY_SECTIONS = ("swap_config", "recompute_config", "mindswap")
# Packages that read, write or show results, and the planner: none of them decides a captured step or a verdict.
NOT_IN_CACHE_KEY = (
    "command_line",
    "planner",
    "policy/formats/megatron",
    "rules/machine",
    "runtime",
    *(
        f"features/{name}"
        for name in ("adaptive", "calibrate", "compare", "convert", "data", "doctor", "dryrun", "example", "plan")
    ),
    *(f"features/{name}" for name in ("prove", "run", "trace")),
)


def cached_result(
    document: Document,
    policy: Policy,
    classes: Iterable[type],
    make: Callable[[], T],
    use_cache: bool,
    is_of_network: bool = False,
    **question: Any,
) -> T:
    """The answer to a question about a configuration.

    Args:
        document: the configuration.
        policy: what it asks for.
        classes: dataclasses that the answer is made of.
        make: finds the answer.
        use_cache: False asks anew and keeps nothing.
        is_of_network: of the configuration counts only what the network is built from, not `POLICY_SECTIONS`.
        question: what is asked, JSON values.
    """
    data = document.data()
    if not use_cache or _has_own_code(data):
        return make()
    counting = data
    if is_of_network:
        counting = {name: value for name, value in data.items() if name not in POLICY_SECTIONS}
        question["stand_ins"] = document.value("mindswap", "cpu_stand_ins") is True
    asked = {"config": repr(counting), "policy": policy.to_config(), "question": question}
    key = make_key(**asked, versions=_versions(), environ=_compile_variables(os.environ))
    return cached(open_data_cache(), key, {cls.__name__: cls for cls in classes}, make)


def _has_own_code(data: Any) -> bool:
    """True if the network comes from code of the user's, which may change without the YAML."""
    if isinstance(data, dict):
        return "auto_register" in data or any(_has_own_code(value) for value in data.values())
    return isinstance(data, (list, tuple)) and any(_has_own_code(value) for value in data)


def _compile_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that change a compile."""
    return {name: environ[name] for name in COMPILE_VARIABLES & environ.keys()}


def _versions() -> dict[str, str]:
    """Versions of what compiles and reads the result; mindswap by the text of its files: other checkouts share it."""
    found = {name: installed_code(name) or "none" for name in ("mindspore", "mindformers")}
    package = Path(__file__).parents[1]
    asked = (*package.rglob("*.py"), *package.glob("data/graph/*.json"))
    files = [path.relative_to(package) for path in sorted(asked)]
    files = [path for path in files if not any(path.is_relative_to(room) for room in NOT_IN_CACHE_KEY)]
    texts = [[path.as_posix(), (package / path).read_text("utf-8")] for path in files]
    return {**found, "mindswap": make_key(files=texts)}
