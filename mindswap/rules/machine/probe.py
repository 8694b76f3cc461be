"""Gather facts about this machine; the other modules of this package only read these facts.

All paths are below `root`, so that tests can pass a folder in place of the file system.
"""

import importlib.metadata
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from mindswap.graph.capture_cache import cache_folder, find_unfit
from mindswap.rules.machine.facts import Machine, Package, Software
from mindswap.rules.machine.software import count_cards
from mindswap.system.cache_permissions import find_danger
from mindswap.system.disk_cache import cache_size
from mindswap.version import __version__

SWITCH_FILE = "mindswap_switch.pth"
_CANN_FOLDERS = ("usr/local/Ascend/ascend-toolkit/latest", "usr/local/Ascend/cann", "usr/local/Ascend/nnae/latest")
_LISTENING = "0A"
# List of supported versions in the class that checks CANN in MindSpore's run_check/_check_version.py.
_CANN_LIST = r"(?s)class AscendEnvChecker\b.*?self\.version\s*=\s*\[([^\]]*)\]"


def gather_software(environ: Mapping[str, str], root: Path = Path("/"), path: Sequence[str] | None = None) -> Software:
    """Gather the installed software.

    Args:
        environ: environment variables.
        root: root of the file system.
        path: folders that Python imports from; None for `sys.path`.
    """
    packages: dict[str, list[Package]] = {}
    for folder in dict.fromkeys(sys.path if path is None else path):
        for copies in importlib.metadata.distributions(path=[folder or "."]):
            name = re.sub(r"[-_.]+", "-", copies.metadata["Name"] or "").lower()
            packages.setdefault(name, []).append(Package(copies.version, folder))
    packages["PyYAML"] = packages.pop("pyyaml", [])
    cann_folder, cann = _find_cann(environ, root)
    return Software(
        python=sys.version_info[:2],
        packages={name: tuple(copies) for name, copies in packages.items()},
        mindswap_version=__version__,
        mindswap_folder=str(Path(__file__).parents[2]),
        cann_of_mindspore=_cann_of_mindspore(packages.get("mindspore", [])),
        cann=cann,
        cann_folder=cann_folder,
        driver=_read_version(root / "usr/local/Ascend/driver/version.info"),
        num_cards=count_cards(root / "dev"),
        has_switch=any(Path(folder or ".", SWITCH_FILE).is_file() for folder in (sys.path if path is None else path)),
    )


def _find_cann(environ: Mapping[str, str], root: Path) -> tuple[str, str]:
    named = environ.get("ASCEND_HOME_PATH") or environ.get("ASCEND_TOOLKIT_HOME")
    folders = [root / named.lstrip("/")] if named else [root / folder for folder in _CANN_FOLDERS]
    for folder in folders:
        # MindSpore reads the first file; the toolkit has the others.
        for file in ("compiler/version.info", "version.info", "version.cfg"):
            if version := _read_version(folder / file):
                return str(folder), version
    return str(folders[0]), ""


def _read_version(path: Path) -> str:
    return _find(r"^\s*[Vv]ersion\s*=\s*(\S+)", path).strip("[]")


def _cann_of_mindspore(copies: Sequence[Package]) -> tuple[str, ...]:
    files = [Path(copy.folder, "mindspore/run_check/_check_version.py") for copy in copies[:1]]
    return tuple(version for file in files for version in re.findall(r"[\d.]+", _find(_CANN_LIST, file)))


def gather_machine(environ: Mapping[str, str], root: Path = Path("/")) -> Machine:
    """Gather limits and resources; `root` is the root of the file system."""
    proc = root / "proc"
    nodes = sorted((root / "sys/devices/system/node").glob("node[0-9]*"))
    nodes = [node for node in nodes if _find(r"MemTotal:\s+(\d+)", node / "meminfo") != "0"]
    cpus = _read_ranges(_find(r"^Cpus_allowed_list:\s*(.*)$", proc / "self/status"))
    memlock = _find(r"^Max locked memory\s+(\S+)", proc / "self/limits")
    folder = cache_folder(environ)
    return Machine(
        memlock_bytes=int(memlock) if memlock.isdecimal() else None,
        host_bytes=host_memory(root),
        shm_bytes=_size(root / "dev/shm", is_free=False),
        num_numa_nodes=max(len(nodes), 1),
        num_allowed_nodes=max(sum(bool(cpus & _read_ranges(_read(node / "cpulist"))) for node in nodes), 1),
        is_numa_balancing=_read(proc / "sys/kernel/numa_balancing").strip() not in ("", "0"),
        ports=frozenset(_listening(_read(proc / "net/tcp")) | _listening(_read(proc / "net/tcp6"))),
        ephemeral_ports=_read_pair(_read(proc / "sys/net/ipv4/ip_local_port_range")),
        reserved_ports=frozenset(_read_ranges(_read(proc / "sys/net/ipv4/ip_local_reserved_ports"))),
        interfaces=frozenset(place.name for place in (root / "sys/class/net").glob("*")),
        cache_folder=str(folder),
        cache_problem=_cache_problem(folder),
        cache_danger=find_danger(folder),
        cache_unfit=find_unfit(environ),
        cache_bytes=cache_size(folder),
        tmp_free_bytes=_size(Path(environ.get("TMPDIR") or tempfile.gettempdir()), is_free=True),
        num_processors=len(cpus),
        num_installed_processors=len(_read_ranges(_read(root / "sys/devices/system/cpu/present"))),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""


def _find(pattern: str, path: Path) -> str:
    """Return the first group of a pattern in a file; "" if it does not match."""
    match = re.search(pattern, _read(path), re.MULTILINE)
    return match[1] if match else ""


def host_memory(root: Path = Path("/")) -> int | None:
    """Return the available host memory in bytes, within the limit of the container; None if unknown.

    Includes the page cache that the kernel can reclaim.
    """
    available = _find(r"^MemAvailable:\s+(\d+) kB", root / "proc/meminfo")
    if not available:
        return None
    size_bytes, cgroup = int(available) << 10, root / "sys/fs/cgroup"
    for limit, used, stat, cache in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ):
        limit_bytes, used_bytes = _find(r"^(\d+)$", cgroup / limit), int(_find(r"^(\d+)$", cgroup / used) or 0)
        cache_bytes = int(_find(rf"^{cache} (\d+)$", cgroup / stat) or 0)
        if limit_bytes:
            size_bytes = min(size_bytes, int(limit_bytes) - max(used_bytes - cache_bytes, 0))
    return max(size_bytes, 0)


def _listening(table: str) -> set[int]:
    """Return the ports of listening sockets in a table `sl local_address rem_address st ...`, in hexadecimal."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 3 and row[3] == _LISTENING}


def _read_ranges(text: str) -> set[int]:
    """Parse a list of numbers such as `0-3,8`."""
    numbers: set[int] = set()
    for low, high in re.findall(r"(\d+)(?:-(\d+))?", text):
        numbers.update(range(int(low), int(high or low) + 1))
    return numbers


def _read_pair(text: str) -> tuple[int, int] | None:
    numbers = [int(word) for word in text.split() if word.isdecimal()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None


def _size(folder: Path, *, is_free: bool) -> int | None:
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return (status.f_bavail if is_free else status.f_blocks) * status.f_frsize


def _cache_problem(folder: Path) -> str:
    """Try to write; permissions are not conclusive for root, or on a read-only or full file system."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x" * 4096)
            file.flush()
    except OSError as error:
        return f"cannot be written: {error.strerror or error}"
    return ""
