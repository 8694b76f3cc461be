"""Support bundle: description of the machine, and an archive of the proof without weights and data."""

import io
import os
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from mindswap.rules.machine.probe import gather_software
from mindswap.units import format_bytes

ARCHIVE = "support_bundle.tar.gz"
PROFILE_FILES = ("*.csv", "trace_view.json", "communication.json", "profiler_*.json")
# Keywords of relevant log lines; the other lines are the printed configuration and progress bars.
LOG_KEYWORDS = ("mindswap", "Set ", "emory", "lazy_inline", "step:[", "ERROR", "CRITICAL", "Error", "Training Over")
MAX_LOG_BYTES = 1 << 20
MAX_FILE_BYTES = 256 << 20
TIMEOUT_S = 20


def describe_machine() -> dict[str, str]:
    """Return versions and devices as text."""
    software = gather_software(os.environ)
    return {
        "mindswap": software.mindswap_version,
        "python": platform.python_version(),
        **{name: software.version(name) or "not installed" for name in ("mindspore", "mindformers", "numpy")},
        "system": platform.platform(),
        "processor": f"{platform.machine()}, {os.cpu_count()} cores",
        "memory": format_bytes(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
        "CANN": f"{software.cann} in {software.cann_folder}" if software.cann else "not found",
        "driver": software.driver or "not found",
        "npu-smi": _npu_smi(),
    }


def _npu_smi() -> str:
    """Return the output of `npu-smi info`, which changes nothing."""
    if shutil.which("npu-smi") is None:
        return "no Ascend cards: npu-smi is not installed"
    try:
        done = subprocess.run(
            ["npu-smi", "info"], capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
        )
        return done.stdout.strip() or done.stderr.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"npu-smi info: {error}"


def pack(folder: Path) -> Path:
    """Create the archive of the proof in a folder, and return its path."""
    target = folder / ARCHIVE
    with tarfile.open(target, "w:gz") as archive:
        for path in _complete_files(folder):
            archive.add(path, f"{folder.name}/{path.relative_to(folder)}", recursive=False)
        for log in sorted(folder.glob("*/logs/**/*.log")):
            content = "".join(_telling_lines(log)).encode()[-MAX_LOG_BYTES:]
            entry = tarfile.TarInfo(f"{folder.name}/{log.relative_to(folder)}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return target


def _complete_files(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.glob("*") if path.suffix in (".json", ".html", ".yaml"))
    for pattern in PROFILE_FILES:
        for path in sorted(folder.glob(f"*/profile/**/ASCEND_PROFILER_OUTPUT/{pattern}")):
            if path.stat().st_size <= MAX_FILE_BYTES:
                yield path


def _telling_lines(log: Path) -> Iterator[str]:
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if any(word in line for word in LOG_KEYWORDS):
                yield line if len(line) <= 2000 else line[:2000] + "\n"
