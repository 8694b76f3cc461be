"""Whether MindSpore and MindFormers are there, of which version, and how far they go together; neither is imported."""

import importlib.util
import os
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from mindswap.errors import LaunchError
from mindswap.graph.cache import make_key

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
    """Whether mindswap works with it; a fourth number, such as 2.7.1.post1, makes no difference."""
    return Pair(_release(mindformers), _release(mindspore)) in PAIRS


def describe_pair(mindformers: str) -> str:
    """What to install for a version of MindFormers that mindswap does not know with the MindSpore beside it."""
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
    """What stands for the code of a package: its version, or the state of its files where they change without it.

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
