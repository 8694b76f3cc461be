"""Connect to a running Ray cluster, compare its nodes, and run functions on them."""

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

# Timeout after which a node counts as lost.
ANSWER_S = 60.0
CONNECT_S = 10.0
# Retries of a function whose node or process was lost.
MAX_RETRIES = 3
NPU = "NPU"  # name of Ascend devices in Ray


class NodeLostError(MindswapError):
    """A node, or the actor on it, does not respond."""


def connect(address: str, **options: Any) -> Any:
    """Connect to a Ray cluster.

    Args:
        address: `HOST:PORT`, or `auto` for the cluster on this machine.
        options: options of `ray.init`.

    Returns:
        The module `ray`.

    Raises:
        LaunchError: if Ray is not installed, or the cluster cannot be reached.
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
        signal.signal(signal.SIGTERM, handler)  # Ray's handler would end the program
    return ray


def _require_reachable(address: str) -> None:
    """Check the address before `ray.init`, which retries for over five minutes and may start a cluster itself."""
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
    """Return the alive nodes, as listed by Ray."""
    return [node for node in ray.nodes() if node["Alive"]]


def on_node(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that pin a task or actor to a node."""
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    return {"scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)}


def answer_of(ray: Any, name: str, call: Any) -> Any:
    """Wait for the result of a remote call.

    Args:
        ray: the module, from `connect`.
        name: name of the node, for messages.
        call: object reference of the call.

    Returns:
        The result.

    Raises:
        LaunchError: if the call raised.
        NodeLostError: if the node does not respond.
    """
    try:
        return ray.get(call, timeout=ANSWER_S)
    except ray.exceptions.RayTaskError as error:
        raise LaunchError(f"node {name}: {error.cause}") from error
    except ray.exceptions.RayError as error:
        raise NodeLostError(f"node {name} is lost") from error


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that determine results."""
    versions = {name: installed_version(name) or "none" for name in ("mindspore", "mindformers")}
    return {"mindswap": __version__, **versions}


def version_mistakes(name: str, versions: Mapping[str, str], local: Mapping[str, str]) -> list[str]:
    """Return a message for each package whose version differs between a node and the driver (`local`)."""
    pairs = [(package, versions.get(package, "none"), version) for package, version in local.items()]
    return [
        f"node {name}: {package} is {remote}, here it is {version}"
        for package, remote, version in pairs
        if remote != version
    ]


def refuse(mistakes: Sequence[str]) -> None:
    """Refuse nodes that differ.

    Raises:
        LaunchError: if there are any messages.
    """
    if mistakes:
        raise LaunchError("\n".join(["the nodes do not match; nothing was started", *(f"    {m}" for m in mistakes)]))


def require_same_versions(ray: Any) -> None:
    """Check that all nodes have the package versions of the driver.

    Raises:
        LaunchError: if a version differs.
    """
    nodes, task = alive_nodes(ray), ray.remote(package_versions)
    calls = [(node["NodeManagerAddress"], task.options(num_cpus=0, **on_node(node)).remote()) for node in nodes]
    local, mistakes = package_versions(), list[str]()
    for name, call in calls:
        with contextlib.suppress(NodeLostError):  # a lost node runs no tasks
            mistakes += version_mistakes(name, answer_of(ray, name, call), local)
    refuse(mistakes)


def begin(ray: Any, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Start a function on any node, on one core.

    If the node is lost, the function is repeated on another one, so it should have no side effects.

    Args:
        ray: the module, from `connect`.
        function: the function.
        arguments: its arguments.

    Returns:
        Future of the result; exceptions of this package are raised unchanged.
    """
    task = ray.remote(function).options(num_cpus=1, max_retries=MAX_RETRIES, scheduling_strategy="SPREAD")
    future: Future[Any] = task.remote(*arguments).future()
    return future
