"""Facts about this computer: the only part of the doctor that looks at it.

Every place is below `root`, so that a test can hand over a computer of its own.
"""

import importlib.metadata
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from mindswap.doctor.model import Machine, Package, Software
from mindswap.graph.cache import cache_folder
from mindswap.launch.msrun import count_cards
from mindswap.version import __version__

__all__ = ["gather_machine", "gather_software"]

_CANN_FOLDERS = ("usr/local/Ascend/ascend-toolkit/latest", "usr/local/Ascend/cann", "usr/local/Ascend/nnae/latest")
_VERSION = re.compile(r"^\s*[Vv]ersion\s*=\s*(\S+)", re.MULTILINE)
_LISTENING = "0A"
# Of the class that checks CANN in MindSpore's own run_check/_check_version.py.
_CANN_LIST = re.compile(r"class AscendEnvChecker\b.*?self\.version\s*=\s*\[([^\]]*)\]", re.DOTALL)


def gather_software(environ: Mapping[str, str], root: Path = Path("/"), path: Sequence[str] | None = None) -> Software:
    """What is installed.

    Args:
        environ: environment variables.
        root: of the file system.
        path: folders that Python imports from.
    """
    folders = list(dict.fromkeys(sys.path if path is None else path))
    packages: dict[str, list[Package]] = {}
    for folder in folders:
        for found in importlib.metadata.distributions(path=[folder or "."]):
            name = _plain(found.metadata["Name"] or "")
            packages.setdefault(name, []).append(Package(found.version, folder))
    names = {"pyyaml": "PyYAML"}
    cann_folder, cann = _find_cann(environ, root)
    return Software(
        sys.version_info[:2],
        {names.get(name, name): tuple(found) for name, found in packages.items()},
        __version__,
        str(Path(__file__).parents[1]),
        _cann_of_mindspore(packages.get("mindspore", [])),
        cann,
        cann_folder,
        _read_version(root / "usr/local/Ascend/driver/version.info"),
        count_cards(root / "dev"),
    )


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _find_cann(environ: Mapping[str, str], root: Path) -> tuple[str, str]:
    named = environ.get("ASCEND_HOME_PATH") or environ.get("ASCEND_TOOLKIT_HOME")
    folders = [root / named.lstrip("/")] if named else [root / folder for folder in _CANN_FOLDERS]
    for folder in folders:
        # MindSpore reads the first; the others are of the toolkit itself.
        for file in ("compiler/version.info", "version.info", "version.cfg"):
            if version := _read_version(folder / file):
                return str(folder), version
    return str(folders[0]), ""


def _read_version(path: Path) -> str:
    found = _VERSION.search(_read(path))
    return found[1].strip("[]") if found else ""


def _cann_of_mindspore(copies: Sequence[Package]) -> tuple[str, ...]:
    if not copies:
        return ()
    found = _CANN_LIST.search(_read(Path(copies[0].folder, "mindspore/run_check/_check_version.py")))
    return tuple(re.findall(r"[\d.]+", found[1])) if found else ()


def gather_machine(environ: Mapping[str, str], root: Path = Path("/")) -> Machine:
    """Limits and resources.

    Args:
        environ: environment variables.
        root: of the file system.
    """
    proc = root / "proc"
    nodes = [node for node in sorted((root / "sys/devices/system/node").glob("node[0-9]*")) if _has_memory(node)]
    cpus = _read_ranges(_field(_read(proc / "self/status"), "Cpus_allowed_list"))
    folder = cache_folder(environ)
    return Machine(
        _read_memlock(_read(proc / "self/limits")),
        _read_host_memory(proc, root / "sys/fs/cgroup"),
        _size(root / "dev/shm", is_free=False),
        max(len(nodes), 1),
        max(sum(bool(cpus & _read_ranges(_read(node / "cpulist"))) for node in nodes), 1),
        _read(proc / "sys/kernel/numa_balancing").strip() not in ("", "0"),
        frozenset(_listening(_read(proc / "net/tcp")) | _listening(_read(proc / "net/tcp6"))),
        _read_pair(_read(proc / "sys/net/ipv4/ip_local_port_range")),
        frozenset(_read_ranges(_read(proc / "sys/net/ipv4/ip_local_reserved_ports"))),
        frozenset(place.name for place in (root / "sys/class/net").glob("*")),
        str(folder),
        _cache_problem(folder),
        _size(Path(environ.get("TMPDIR") or tempfile.gettempdir()), is_free=True),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""


def _field(text: str, name: str) -> str:
    found = re.search(rf"^{name}:\s*(.*)$", text, re.MULTILINE)
    return found[1] if found else ""


def _has_memory(node: Path) -> bool:
    found = re.search(r"MemTotal:\s+(\d+)", _read(node / "meminfo"))
    return found is None or int(found[1]) > 0


def _read_memlock(limits: str) -> int | None:
    found = re.search(r"^Max locked memory\s+(\S+)", limits, re.MULTILINE)
    return int(found[1]) if found and found[1].isdecimal() else None


def _read_host_memory(proc: Path, cgroup: Path) -> int | None:
    """What is available, or what the container may still take where that is less."""
    available = re.search(r"^MemAvailable:\s+(\d+) kB", _read(proc / "meminfo"), re.MULTILINE)
    if available is None:
        return None
    size_bytes = int(available[1]) << 10
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        words = _read(cgroup / limit).strip(), _read(cgroup / used).strip()
        if words[0].isdecimal():
            size_bytes = min(size_bytes, int(words[0]) - (int(words[1]) if words[1].isdecimal() else 0))
    return max(size_bytes, 0)


def _listening(table: str) -> set[int]:
    """Ports of the sockets that listen: `sl local_address rem_address st ...`, numbers in hexadecimal."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if len(row) > 3 and row[3] == _LISTENING}


def _read_ranges(text: str) -> set[int]:
    """Numbers of a list such as `0-3,8`."""
    found: set[int] = set()
    for low, high in re.findall(r"(\d+)(?:-(\d+))?", text):
        found.update(range(int(low), int(high or low) + 1))
    return found


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
    """By trying: permissions alone do not say it for root, or on a file system that is read-only or full."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x" * 4096)
            file.flush()
    except OSError as error:
        return f"cannot be written: {error.strerror or error}"
    return ""
