"""A Ray cluster that runs: how to reach it, what its nodes must have in common, functions that run on any of them."""

import contextlib
import importlib
import importlib.util
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from mindswap.errors import LaunchError, MindswapError, install_command
from mindswap.rules.machine.software import installed_version
from mindswap.version import __version__

# A node that does not answer for so long is lost.
ANSWER_S = 60.0
CONNECT_S = 10.0
# So often a function is begun again where its node, or its process, was lost.
MAX_RETRIES = 3
NPU = "NPU"  # what Ray calls cards of Ascend


class NodeLostError(MindswapError):
    """A node, or the actor on it, does not answer any more."""


def connect(address: str, **options: Any) -> Any:
    """Ray, as part of the cluster at this address, or of the one that runs here (`auto`); options as of `ray.init`.

    Raises:
        LaunchError: it is not installed, or there is no such cluster.
    """
    if importlib.util.find_spec("ray") is None:
        raise LaunchError(f"--ray: Ray is not installed\n    fix:     {install_command('ray')}")
    _require_reachable(address)
    ray, handler = importlib.import_module("ray"), signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        fix = "ray start --head; where the cluster has a token: RAY_AUTH_MODE=token"
        raise LaunchError(f"--ray {address}: {error}\n    fix:     {fix}") from error
    finally:
        signal.signal(signal.SIGTERM, handler)  # Ray ends the program with a handler of its own
    return ray


def _require_reachable(address: str) -> None:
    """Ray itself tries for more than five minutes, and takes other words for orders to start something."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise LaunchError(f"--ray {address}\n    allowed: auto, or HOST:PORT as `ray start --head` prints it")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError as error:
        raise LaunchError(f"--ray {address}: {error}\n    fix:     ray start --head there, or its address") from error


def alive_nodes(ray: Any) -> list[Mapping[str, Any]]:
    """The nodes as Ray tells of them."""
    return [node for node in ray.nodes() if node["Alive"]]


def on_node(node: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a task or actor that runs on this node and no other."""
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    return {"scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)}


def answer_of(ray: Any, name: str, call: Any) -> Any:
    """Answer of a call on a node of this name. Raises LaunchError: what it raised; NodeLostError."""
    try:
        return ray.get(call, timeout=ANSWER_S)
    except ray.exceptions.RayTaskError as error:
        raise LaunchError(f"node {name}: {error.cause}") from error
    except ray.exceptions.RayError as error:
        raise NodeLostError(f"node {name} is lost") from error


def package_versions() -> dict[str, str]:
    """Versions that decide what a command does."""
    others = {name: installed_version(name) or "none" for name in ("mindspore", "mindformers")}
    return {"mindswap": __version__, **others}


def version_mistakes(name: str, versions: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Packages that a node of this name has in other versions than the driver."""
    pairs = [(package, versions.get(package, "none"), version) for package, version in here.items()]
    return [f"node {name}: {package} is {there}, here it is {version}" for package, there, version in pairs
            if there != version]  # fmt: skip


def refuse(mistakes: Sequence[str]) -> None:
    """Raises LaunchError if there is any."""
    if mistakes:
        raise LaunchError("\n".join(["the nodes do not match; nothing was started", *(f"    {m}" for m in mistakes)]))


def require_same_versions(ray: Any) -> None:
    """Raises LaunchError: a node would run other code than the driver does."""
    nodes, task = alive_nodes(ray), ray.remote(package_versions)
    calls = [(node["NodeManagerAddress"], task.options(num_cpus=0, **on_node(node)).remote()) for node in nodes]
    here, found = package_versions(), list[str]()
    for name, call in calls:
        with contextlib.suppress(NodeLostError):  # it runs nothing
            found += version_mistakes(name, answer_of(ray, name, call), here)
    refuse(found)


def begin(ray: Any, function: Callable[..., Any], *given: Any) -> Future[Any]:
    """A function that runs on any node, on one core there.

    What ran on a lost node runs again elsewhere, so it should change nothing. An error of the package comes as it is.
    """
    task = ray.remote(function).options(num_cpus=1, max_retries=MAX_RETRIES, scheduling_strategy="SPREAD")
    future: Future[Any] = task.remote(*given).future()
    return future
