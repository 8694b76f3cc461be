"""Disk cache of results that need a compile; the key contains everything that determines them."""

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
# Classes of a compiled network.
GRAPH_CLASSES = (LayerSample, CellNode, Graph, Node, Saved, TensorType, Collective)
# Sections that do not affect the step without swap and recompute, except for `mindswap: cpu_stand_ins`.
POLICY_SECTIONS = ("swap_config", "recompute_config", "mindswap")
# Packages that do not affect a captured step or a verification: those that read or format results, the simulator, and
# the planner.
NOT_IN_CACHE_KEY = (
    "command_line",
    "planner",
    "policy/formats/megatron",
    "rules/machine",
    "runtime",
    "simulator",
    *(
        f"features/{name}"
        for name in ("adaptive", "calibrate", "compare", "convert", "data", "doctor", "dryrun", "example", "plan")
    ),
    *(f"features/{name}" for name in ("prove", "run", "trace")),
)
# But for the form of a captured step, and what `verify` reads of a dry run.
IN_CACHE_KEY = ("simulator/captured_step.py", "features/dryrun/block_roles.py", "features/dryrun/memory_pool.py")


def cached_result(
    document: Document,
    policy: Policy,
    classes: Iterable[type],
    make: Callable[[], T],
    use_cache: bool,
    is_of_network: bool = False,
    **question: Any,
) -> T:
    """Return a result for a configuration from the cache, or compute and store it.

    Args:
        document: the configuration.
        policy: its policy.
        classes: dataclasses in the result.
        make: function that computes the result.
        use_cache: False computes the result and stores nothing.
        is_of_network: whether the result depends on the network only, not on `POLICY_SECTIONS`.
        question: kind and arguments of the result as JSON values, part of the key.
    """
    data = document.data()
    if not use_cache or _has_own_code(data):
        return make()
    counting = data
    if is_of_network:
        counting = {name: value for name, value in data.items() if name not in POLICY_SECTIONS}
        question["stand_ins"] = document.value("mindswap", "cpu_stand_ins") is True
    request = {"config": repr(counting), "policy": policy.to_config(), "question": question}
    key = make_key(**request, versions=_versions(), environ=_compile_variables(os.environ))
    return cached(open_data_cache(), key, {cls.__name__: cls for cls in classes}, make)


def _has_own_code(data: Any) -> bool:
    """Return whether the network is built by the user's code, which may change independently of the YAML."""
    if isinstance(data, dict):
        return "auto_register" in data or any(_has_own_code(value) for value in data.values())
    return isinstance(data, (list, tuple)) and any(_has_own_code(value) for value in data)


def _compile_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that affect a compile."""
    return {name: environ[name] for name in COMPILE_VARIABLES & environ.keys()}


def _is_left_out(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in NOT_IN_CACHE_KEY)


def _versions() -> dict[str, str]:
    """Return the versions of compiler and reader; of mindswap a hash of its sources, as checkouts share the cache."""
    versions = {name: installed_code(name) or "none" for name in ("mindspore", "mindformers")}
    package = Path(__file__).parents[1]
    sources = (*package.rglob("*.py"), *package.glob("data/graph/*.json"))
    files = [path.relative_to(package) for path in sorted(sources)]
    files = [path for path in files if path.as_posix() in IN_CACHE_KEY or not _is_left_out(path)]
    texts = [[path.as_posix(), (package / path).read_text("utf-8")] for path in files]
    return {**versions, "mindswap": make_key(files=texts)}
