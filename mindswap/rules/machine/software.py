"""Diagnoses of installed software and environment variables."""

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from mindswap.config.problem import Level
from mindswap.errors import LaunchError
from mindswap.graph.capture_cache import make_key
from mindswap.rules.machine.facts import Diagnosis, MachineFacts, diagnosis

# Installed versions of MindSpore and MindFormers, and whether they are compatible; neither is imported.

# Environment variable that allows untested pairs of versions if it is 1.
ANY_VERSION = "MINDSWAP_ANY_VERSION"


@dataclass(frozen=True)
class Pair:
    """Two compatible versions; `mindformers` is "" for MindSpore without MindFormers."""

    mindformers: str
    mindspore: str


# Pairs that `make matrix` tests.
SUPPORTED_PAIRS = (
    Pair("1.6.0", "2.7.0"),
    Pair("1.7.0", "2.7.1"),
    Pair("1.8.0", "2.7.2"),
    Pair("1.9.0", "2.9.0"),
    Pair("2.1.0", "2.9.0"),  # graph mode
    Pair("2.1.0", "2.10.0"),  # graph mode, and dry runs in PyNative mode
    Pair("", "2.10.0"),
)
# MindFormers whose PyNative trainer a dry run starts, and its MindSpore.
TRAINER_VERSIONS = ("2.1.0", "2.10.0")
# The MindSpore that a MindFormers asks for, where mindswap knows no such pair. Source: VERSION_MAP.json of the wheel.
_OF_2X = {
    "2.0.0": "mindformers 2.0.0 belongs to mindspore 2.10.0, which mindswap did not try: pip install --no-deps "
    "mindformers==2.1.0 and mindspore==2.10.0",
    "2.1.0": "mindformers 2.1.0 requires mindspore 2.11, which PyPI does not have: pip install mindspore==2.10.0 "
    "(graph mode, and dryrun of PyNative files) or 2.9.0 (graph mode)",
}
_BEST = "pip install mindformers==1.9.0 mindspore==2.9.0"


def is_supported_pair(mindformers: str, mindspore: str) -> bool:
    """Return whether mindswap supports a pair of versions; a suffix, as in 2.7.1.post1, is ignored."""
    return Pair(_release(mindformers), _release(mindspore)) in SUPPORTED_PAIRS


def suggest_pair(mindformers: str) -> str:
    """Return the command that installs a compatible pair for a version of MindFormers, and why if it is of 2.x."""
    if advice := _OF_2X.get(_release(mindformers)):
        return advice
    partner = next((pair.mindspore for pair in SUPPORTED_PAIRS if pair.mindformers == _release(mindformers)), "")
    return f"pip install mindspore=={partner}, which belongs to it" if partner else _BEST


def _release(text: str) -> str:
    return ".".join(text.split("+")[0].split(".")[:3])


def installed_version(name: str) -> str:
    """Return the version of a distribution; "" if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def installed_code(name: str) -> str:
    """Return a key of the code of a package; "" if there is no such package.

    The key is the version, or, for a checkout (on `sys.path` or an editable install), a digest of the state of its
    files.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return ""
    module = Path(spec.origin)
    try:
        package = distribution(name)
    except PackageNotFoundError:
        package = None
    if package and package.read_text("RECORD"):
        of_release = Path(str(package.locate_file(f"{name}/__init__.py")))
        if of_release.resolve() == module.resolve():
            return package.version
    files = sorted(path for path in module.parent.rglob("*") if path.suffix in (".py", ".so") and path.is_file())
    states = [(path, path.stat()) for path in files]
    return make_key(files=[[str(path), state.st_size, state.st_mtime_ns] for path, state in states])


def require_mindformers() -> None:
    """Check that MindSpore and MindFormers are installed, and that their versions are compatible.

    Raises:
        LaunchError: if a package is missing, or the pair of versions was never tested; names the command to run.
    """
    missing = [name for name in ("mindspore", "mindformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise LaunchError(
            f"not installed: {', '.join(missing)}\n    fix: pip install mindspore==2.9.0 mindformers==1.9.0 (on "
            "Ascend, install the MindSpore that matches your CANN, then mindformers==1.9.0)"
        )
    mindformers, mindspore = installed_version("mindformers"), installed_version("mindspore")
    is_unknown = not mindformers or not mindspore  # a checkout on `sys.path` has no version
    if is_unknown or is_supported_pair(mindformers, mindspore) or os.environ.get(ANY_VERSION) == "1":
        return
    raise LaunchError(
        f"mindformers {mindformers} with mindspore {mindspore}: mindswap was never tried with this pair\n"
        f"    fix: {suggest_pair(mindformers)}; {ANY_VERSION}=1 tries it all the same"
    )


def has_cards() -> bool:
    """Return whether the machine has Ascend devices; workers are bound to the cores near them only in this case."""
    return shutil.which("npu-smi") is not None


def count_cards(devices: Path = Path("/dev")) -> int:
    """Return the number of Ascend devices in `/dev`; 0 also if the driver lists them elsewhere."""
    return len(list(devices.glob("davinci[0-9]*")))


_PYTHONS = ((3, 10), (3, 11), (3, 12))
# Variables of a worker. If they remain from a launcher or are exported by hand, workers of msrun take a wrong role.
_WORKER_VARIABLES = ("MS_ROLE", "MS_WORKER_NUM", "MS_SCHED_HOST", "MS_SCHED_PORT")
SWITCH_OFF = ("", "0", "false", "no", "off")  # values of MINDSWAP, as in mindswap_switch.py
_PACKAGES = ("numpy", "highspy", "numba", "jinja2", "psutil", "PyYAML", "regex", "tqdm")
_INTERFACE_VARIABLES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def find_in_software(facts: MachineFacts) -> Iterator[Diagnosis]:
    """Yield diagnoses of incompatible versions and missing software."""
    software = facts.software
    mindspore, mindformers = software.version("mindspore"), software.version("mindformers")
    if software.python not in _PYTHONS:
        yield diagnosis("python", Level.WARNING if mindspore else None, version=".".join(map(str, software.python)))
    missing = [name for name in _PACKAGES if not software.version(name)]
    if missing:
        yield diagnosis("packages", names=", ".join(missing), words=" ".join(missing))
    if not mindspore or not mindformers:
        absent = [name for name, version in (("mindspore", mindspore), ("mindformers", mindformers)) if not version]
        yield diagnosis("not-installed", names=", ".join(absent))
    elif not is_supported_pair(mindformers, mindspore):
        advice = suggest_pair(mindformers)
        yield diagnosis("version-pair", mindformers=mindformers, mindspore=mindspore, advice=advice)
    cann, folder, expected = software.cann, software.cann_folder, software.cann_of_mindspore
    if cann and expected and ".".join(cann.split(".")[:2]) not in expected:
        yield diagnosis("cann-version", cann=cann, folder=folder, mindspore=mindspore, expected=", ".join(expected))
    if software.num_cards and not cann:
        yield diagnosis("cann-missing", num_cards=software.num_cards, folder=folder or "ASCEND_HOME_PATH")
    if cann and not software.driver:
        yield diagnosis("driver-missing", cann=cann)
    # Workers import the first mindswap on their path, which may be another version than this one.
    copies = software.packages.get("mindswap", ())
    other_copies = ", ".join(
        f"{copy.version} in {copy.folder}" for copy in copies if copy.version != software.mindswap_version
    )
    if other_copies:
        yield diagnosis(
            "stale-plugin", version=software.mindswap_version, folder=software.mindswap_folder, others=other_copies
        )


def find_in_environment(facts: MachineFacts) -> Iterator[Diagnosis]:
    """Yield diagnoses of environment variables that silently change a training."""
    environ, interfaces = facts.environ, facts.machine.interfaces
    if environ.get("ENABLE_LAZY_INLINE_NO_PIPELINE", "").strip() == "0":
        yield diagnosis("lazy-inline-env")
    if environ.get("MINDSWAP", "").strip().lower() not in SWITCH_OFF and not facts.software.has_switch:
        yield diagnosis("switch-missing", value=environ["MINDSWAP"])
    leftover = [name for name in _WORKER_VARIABLES if environ.get(name)]
    if leftover:
        variables = ", ".join(f"{name}={environ[name]}" for name in leftover)
        yield diagnosis("worker-variables", variables=variables, words=" ".join(leftover))
    if level := environ.get("MS_SIMULATION_LEVEL"):
        yield diagnosis("simulation-level", value=level)
    for name in _INTERFACE_VARIABLES:
        # "=eth0" is this interface, "eth" all with this prefix, "^eth" all without it.
        prefixes = [part.lstrip("=") for part in environ.get(name, "").split(",") if part and not part.startswith("^")]
        is_present = any(interface.startswith(part) for part in prefixes for interface in interfaces)
        if prefixes and interfaces and not is_present:
            available = ", ".join(sorted(interfaces))
            yield diagnosis("network-interface", name=name, value=environ[name], interfaces=available)
    timeout = environ.get("HCCL_CONNECT_TIMEOUT", "")
    if timeout and (not re.fullmatch(r"\d{1,6}", timeout) or not 120 <= int(timeout) <= 7200):
        yield diagnosis("hccl-timeout", value=timeout)
