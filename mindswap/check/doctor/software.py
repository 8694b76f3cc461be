"""Findings about what is installed, and about environment variables."""

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from mindswap.check.doctor.facts import Diagnosis, MachineFacts, error, warning
from mindswap.errors import LaunchError
from mindswap.graph.cache import make_key

# Whether MindSpore and MindFormers are there, of which version, and how far they go together; neither is imported.

# Set to 1: versions that were never tried together are tried all the same.
ANY_VERSION = "MINDSWAP_ANY_VERSION"


@dataclass(frozen=True)
class Pair:
    """Two versions that work together; `mindformers` is "" for MindSpore alone."""

    mindformers: str
    mindspore: str


# What `make matrix` tries.
PAIRS = (
    Pair("1.6.0", "2.7.0"),
    Pair("1.7.0", "2.7.1"),
    Pair("1.8.0", "2.7.2"),
    Pair("1.9.0", "2.9.0"),
    Pair("2.1.0", "2.9.0"),
    Pair("", "2.10.0"),
)
_BEST = "pip install mindformers==1.9.0 mindspore==2.9.0"


def is_known_pair(mindformers: str, mindspore: str) -> bool:
    """True if mindswap works with it; a fourth number, such as 2.7.1.post1, makes no difference."""
    return Pair(_release(mindformers), _release(mindspore)) in PAIRS


def describe_pair(mindformers: str) -> str:
    """Advice for a version of MindFormers that mindswap does not know with the MindSpore beside it."""
    partner = next((pair.mindspore for pair in PAIRS if pair.mindformers == _release(mindformers)), "")
    return f"pip install mindspore=={partner}, which belongs to it" if partner else _BEST


def _release(text: str) -> str:
    return ".".join(text.split("+")[0].split(".")[:3])


def installed_version(name: str) -> str:
    """Version of a distribution; "" if it is not installed as one."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def installed_code(name: str) -> str:
    """Identity of the code of a package: its version, or the state of its files where they change without it.

    They do in a checkout, on the path or installed as editable. "" if there is no such package.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return ""
    module = Path(spec.origin)
    try:
        found = distribution(name)
    except PackageNotFoundError:
        found = None
    if found and found.read_text("RECORD"):
        of_release = Path(str(found.locate_file(f"{name}/__init__.py")))
        if of_release.resolve() == module.resolve():
            return found.version
    files = sorted(path for path in module.parent.rglob("*") if path.suffix in (".py", ".so") and path.is_file())
    states = [(path, path.stat()) for path in files]
    return make_key(files=[[str(path), state.st_size, state.st_mtime_ns] for path, state in states])


def require_mindformers() -> None:
    """Say what to install if one of them is missing, or if nobody knows whether they go together.

    Raises:
        LaunchError: naming what is not there, or what to install.
    """
    missing = [name for name in ("mindspore", "mindformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise LaunchError(
            f"not installed: {', '.join(missing)}\n    fix: pip install mindspore==2.9.0 mindformers==1.9.0 (on "
            "Ascend, install the MindSpore that matches your CANN, then mindformers==1.9.0)"
        )
    mindformers, mindspore = installed_version("mindformers"), installed_version("mindspore")
    is_unknown = not mindformers or not mindspore  # a checkout on the path says nothing of its version
    if is_unknown or is_known_pair(mindformers, mindspore) or os.environ.get(ANY_VERSION) == "1":
        return
    raise LaunchError(
        f"mindformers {mindformers} with mindspore {mindspore}: mindswap was never tried with this pair\n"
        f"    fix: {describe_pair(mindformers)}; {ANY_VERSION}=1 tries it all the same"
    )


def has_cards() -> bool:
    """Ascend cards are here, so binding workers to the cores near them pays; on a CPU it takes cores away."""
    return shutil.which("npu-smi") is not None


def count_cards(devices: Path = Path("/dev")) -> int:
    """Ascend cards that the driver shows; 0 also where it shows them elsewhere."""
    return len(list(devices.glob("davinci[0-9]*")))


_PYTHONS = ((3, 10), (3, 11), (3, 12))
# Left behind by a launcher, or exported by hand: then no worker of msrun is what it thinks it is.
_WORKER_VARIABLES = ("MS_ROLE", "MS_WORKER_NUM", "MS_SCHED_HOST", "MS_SCHED_PORT")
_PACKAGES = ("numpy", "scipy", "highspy", "numba", "jinja2", "PyYAML", "regex", "tqdm")
_INTERFACE_VARIABLES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def find_in_software(facts: MachineFacts) -> Iterator[Diagnosis]:
    """Versions that do not go together, and what is not there."""
    software = facts.software
    mindspore, mindformers = software.version("mindspore"), software.version("mindformers")
    if software.python not in _PYTHONS:
        yield (warning if mindspore else error)(
            "python",
            f"Python {'.'.join(map(str, software.python))}",
            "MindSpore has wheels for Python 3.9 to 3.12, mindswap needs 3.10 or later, and is tested on 3.11",
            "an environment of Python 3.11",
        )
    missing = [name for name in _PACKAGES if not software.version(name)]
    if missing:
        yield error(
            "packages",
            f"not installed: {', '.join(missing)}",
            "mindswap cannot plan or simulate without them",
            f"pip install {' '.join(missing)}",
        )
    if not mindspore or not mindformers:
        absent = [name for name, found in (("mindspore", mindspore), ("mindformers", mindformers)) if not found]
        yield error(
            "not-installed",
            f"not installed: {', '.join(absent)}",
            "check, explain and convert work without; run, verify, inspect, simulate and plan do not",
            "pip install mindspore==2.9.0 mindformers==1.9.0; on Ascend the MindSpore that matches your CANN, then "
            "mindformers 1.9.0",
        )
    elif not is_known_pair(mindformers, mindspore):
        yield error(
            "version-pair",
            f"mindformers {mindformers} with mindspore {mindspore}",
            "this pair was never tried: hooks may meet other functions than they expect",
            describe_pair(mindformers),
        )
    yield from _find_cann(facts)
    yield from _find_stale(facts)


def _find_cann(facts: MachineFacts) -> Iterator[Diagnosis]:
    software = facts.software
    if software.cann and software.cann_of_mindspore and _minor(software.cann) not in software.cann_of_mindspore:
        yield error(
            "cann-version",
            f"CANN {software.cann} ({software.cann_folder}) with mindspore {software.version('mindspore')}",
            f"this MindSpore is made for CANN {', '.join(software.cann_of_mindspore)} (its own list); "
            "with another it stops, or operators are missing",
            "install the MindSpore that matches: https://www.mindspore.cn/install",
        )
    if software.num_cards and not software.cann:
        yield error(
            "cann-missing",
            f"{software.num_cards} cards, and no CANN in {software.cann_folder or 'ASCEND_HOME_PATH'}",
            "without it MindSpore knows the CPU only",
            "install CANN, and: source /usr/local/Ascend/ascend-toolkit/set_env.sh",
        )
    if software.cann and not software.driver:
        yield warning(
            "driver-missing",
            f"CANN {software.cann}, and no driver in /usr/local/Ascend/driver",
            "without the driver (in a container: its folder from the host) no card can be used",
            "install the driver, or start the container with -v /usr/local/Ascend/driver:/usr/local/Ascend/driver",
        )


def _find_stale(facts: MachineFacts) -> Iterator[Diagnosis]:
    """The mindswap that workers import is the first on their path: another one than this is a trap."""
    software = facts.software
    copies = software.packages.get("mindswap", ())
    others = [copy for copy in copies if copy.version != software.own_version]
    if others:
        found = ", ".join(f"{copy.version} in {copy.folder}" for copy in others)
        yield error(
            "stale-plugin",
            f"mindswap {software.own_version} runs from {software.own_folder}, and there is also {found}",
            "workers may import the other one: what is checked here is not what trains",
            "pip uninstall mindswap, until it says that there is none; then install the one you want",
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def find_in_environment(facts: MachineFacts) -> Iterator[Diagnosis]:
    """Variables that change what a training does, without a word in its log."""
    environ, machine = facts.environ, facts.machine
    if environ.get("ENABLE_LAZY_INLINE_NO_PIPELINE", "").strip() == "0":
        yield error(
            "lazy-inline-env",
            "ENABLE_LAZY_INLINE_NO_PIPELINE=0",
            "it forbids lazy_inline without pipeline stages, and outside of lazy_inline nothing is swapped",
            "unset ENABLE_LAZY_INLINE_NO_PIPELINE",
        )
    left = [name for name in _WORKER_VARIABLES if environ.get(name)]
    if left:
        yield error(
            "worker-variables",
            ", ".join(f"{name}={environ[name]}" for name in left),
            "they are of a worker of msrun: a process that starts with them waits for a scheduler that is not there",
            f"unset {' '.join(left)}",
        )
    if environ.get("MS_SIMULATION_LEVEL"):
        yield warning(
            "simulation-level",
            f"MS_SIMULATION_LEVEL={environ['MS_SIMULATION_LEVEL']}",
            "MindSpore then compiles and trains nothing: a dry run",
            "unset MS_SIMULATION_LEVEL",
        )
    for name in _INTERFACE_VARIABLES:
        # "=eth0" is exactly this one, "eth" all that begin so, "^eth" none of these.
        wanted = [part.lstrip("=") for part in environ.get(name, "").split(",") if part and not part.startswith("^")]
        missing = [part for part in wanted if not any(found.startswith(part) for found in machine.interfaces)]
        if wanted and len(missing) == len(wanted) and machine.interfaces:
            yield error(
                "network-interface",
                f"{name}={environ[name]}, and this machine has {', '.join(sorted(machine.interfaces))}",
                "workers wait for each other until the time-out",
                f"export {name}=one of these, or unset it",
            )
    timeout = environ.get("HCCL_CONNECT_TIMEOUT", "")
    if timeout and (not re.fullmatch(r"\d{1,6}", timeout) or not 120 <= int(timeout) <= 7200):
        yield error(
            "hccl-timeout",
            f"HCCL_CONNECT_TIMEOUT={timeout}",
            "HCCL takes 120 to 7200 seconds (CANN: environment variables of HCCL) and stops at anything else",
            "export HCCL_CONNECT_TIMEOUT=1200",
        )
