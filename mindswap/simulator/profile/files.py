"""Search for profiles: a folder, its ranks, and in each the files, which are recognised by their content.

The profilers of MindSpore and torch_npu write `<rank>_ascend_ms/ASCEND_PROFILER_OUTPUT` (`_ascend_pt`), CANN's msprof
`PROF_*/mindstudio_profiler_output`. If the first is next to the second, the first is read.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from mindswap.errors import CostError
from mindswap.simulator.profile.profile import Profile
from mindswap.simulator.profile.tables import (
    FILES,
    Progress,
    read_kernels,
    read_peak,
    read_steps,
    read_transfers,
    recognise_table,
)
from mindswap.simulator.profile.trace import read_copies

OUTPUT_FOLDERS = ("ASCEND_PROFILER_OUTPUT", "mindstudio_profiler_output")
RANK_ENDINGS = ("_ascend_ms", "_ascend_pt")
# Tables of the frameworks take precedence over those of msprof.
KERNEL_TABLES = ("kernels", "summary")
MAX_DEPTH = 6
# Length of the prefix by which a JSON file is recognised.
SNIFFED_BYTES = 2**16
MAX_INFO_BYTES = 2**20
AS_WRITTEN = "analyse the profile again and leave its files as they are: a spreadsheet writes other ones"


@dataclass(frozen=True)
class RankFiles:
    """Files of one rank."""

    folder: Path  # folder of the files
    files: dict[str, tuple[Path, ...]]  # kind of content -> files

    def get(self, *kinds: str) -> tuple[Path, ...]:
        """Return the files of the first of these kinds that exists."""
        return next((self.files[kind] for kind in kinds if kind in self.files), ())


def find_profiles(path: Path) -> tuple[RankFiles, ...]:
    """Find the files of each rank in a folder, or take a single file.

    Args:
        path: output folder of the profiler, folder of a rank, folder with the files, or a table of kernels.

    Raises:
        CostError: if there is no profile.
    """
    if path.is_file():
        kind = _recognise(path)
        if kind is None:
            raise CostError(f"{path}: is not a known file of a profiler\n    fix:     name its folder")
        return (RankFiles(path.parent, {kind: (path,)}),)
    if not path.is_dir():
        raise CostError(f"{path}: no such folder\n    fix:     name the output_path that the profiler was given")
    ranks: dict[Path, list[RankFiles]] = {}
    names: list[str] = []
    for folder in _walk(path, names):
        files_by_kind = _recognise_all(folder)
        if any(kind in files_by_kind for kind in KERNEL_TABLES):
            ranks.setdefault(_rank_of(folder), []).append(RankFiles(folder, files_by_kind))
    chosen = [min(entries, key=lambda entry: "kernels" not in entry.files) for entries in ranks.values()]
    if not chosen:
        unreadable = next(
            entry for entry in FILES["unreadable"] if any(re.match(entry["sign"], name) for name in (*names, ""))
        )
        raise CostError(f"{path}: {unreadable['says']}\n    fix:     {unreadable['fix']}")
    return tuple(_with_info(entry) for entry in chosen)


def read_bytes(ranks: Iterable[RankFiles]) -> int:
    """Return the bytes of all traces and tables of kernels, which take most of the reading time."""
    files = [file for rank in ranks for file in (*rank.get(*KERNEL_TABLES), *rank.get("trace"))]
    return sum(file.stat().st_size for file in files)


def load_profile(path: Path, progress: Callable[[int], Progress] | None = None) -> Profile:
    """Load the profiles of all ranks in a folder as one.

    Args:
        path: see `find_profiles`.
        progress: called with the number of bytes to read; returns a callback for the bytes read so far.

    Raises:
        CostError: if there is no profile, or a file is invalid.
    """
    ranks = find_profiles(path)
    told = progress(read_bytes(ranks)) if progress else None
    try:
        return _load(path, ranks, told)
    except CostError as error:
        raise error if "fix:" in str(error) else CostError(f"{error}\n    fix:     {AS_WRITTEN}") from error


def _load(path: Path, ranks: Sequence[RankFiles], progress: Progress | None) -> Profile:
    def files(*kinds: str) -> list[Path]:
        return [file for rank in ranks for file in rank.get(*kinds)]

    kernels = tuple(kernel for file in files(*KERNEL_TABLES) for kernel in read_kernels(file, progress))
    traces = [(number, file) for number, rank in enumerate(ranks) for file in rank.get("trace")]
    copies_by_rank = [read_copies(file, number, progress) for number, file in traces]
    copies = sorted(
        (copy for rank_copies, _ in copies_by_rank for copy in rank_copies), key=lambda copy: (copy.rank, copy.start_ns)
    )
    peaks = map(read_peak, files("blocks", "memory"))
    has_traces = all(rank.get("trace") for rank in ranks)
    return Profile(
        folder=str(path if len(ranks) > 1 else ranks[0].folder),
        kernels=kernels,
        copies=tuple(copies),
        steps=tuple(step for file in files("steps") for step in read_steps(file)),
        peak_memory_bytes=max((peak for peak in peaks if peak is not None), default=None),
        notes=() if has_traces else ("no trace_view.json: the links to the host keep their figures",),
        transfers=tuple(transfer for file in files("communication") for transfer in read_transfers(file)),
        num_ranks=len(ranks),
        num_unsized_copies=sum(num_unsized for _, num_unsized in copies_by_rank),
        level=_level(ranks[0].get("info")),
    )


def _walk(path: Path, names: list[str]) -> Iterator[Path]:
    """Yield a folder and its subfolders in order, without links; append the names of all entries to `names`."""
    for parent, folders, files in os.walk(path):
        depth = len(Path(parent).relative_to(path).parts)
        folders[:] = sorted(folders) if depth < MAX_DEPTH else []
        names += [*folders, *files]
        yield Path(parent)


def _rank_of(folder: Path) -> Path:
    """Return the folder that contains all files of a rank."""
    for parent in (folder, *folder.parents):
        if parent.name.endswith(RANK_ENDINGS):
            return parent
    return folder.parent if folder.name in OUTPUT_FOLDERS else folder


def _recognise_all(folder: Path) -> dict[str, tuple[Path, ...]]:
    recognised: dict[str, tuple[Path, ...]] = {}
    try:
        files = sorted(folder.iterdir())
    except OSError as error:
        raise CostError(f"{folder}: cannot be read: {error.strerror}") from error
    for file in files:
        kind = _recognise(file)
        if kind is not None:
            recognised[kind] = (*recognised.get(kind, ()), file)
    return recognised


def _recognise(file: Path) -> str | None:
    if not file.is_file() or file.suffix not in (".csv", ".json"):
        return None
    kinds: Mapping[str, Mapping[str, list[str]]] = FILES["known"]
    named = (kind for kind, its in kinds.items() if any(fnmatchcase(file.name, name) for name in its.get("names", ())))
    by_name = next(named, None)
    if file.suffix == ".csv":
        return recognise_table(file) or by_name
    try:
        with file.open("rb") as stream:
            text = stream.read(SNIFFED_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    signed = (kind for kind, its in kinds.items() if any(sign in text for sign in its.get("signs", ())))
    kind = next(signed, by_name)
    return None if kind == "matrix" else kind


def _with_info(rank: RankFiles) -> RankFiles:
    """Add files next to the folder: settings of the profiler, blocks of memory."""
    parent_files = _recognise_all(rank.folder.parent)
    missing_kinds = {"info", "blocks"} & parent_files.keys() - rank.files.keys()
    return RankFiles(rank.folder, {**rank.files, **{kind: parent_files[kind] for kind in missing_kinds}})


def _level(files: tuple[Path, ...]) -> str:
    """Return the profiler level, such as `Level1`, from `profiler_info_0.json`; "" if it is not there."""
    for file in files:
        try:
            with file.open(encoding="utf-8", errors="replace") as stream:
                text = stream.read(MAX_INFO_BYTES)
            match = re.search(r'profiler_level"\s*:\s*' + r'"(?:ProfilerLevel\.)?(Level\w+)"', text)
        except OSError:
            continue
        if match:
            return match[1]
    return ""
