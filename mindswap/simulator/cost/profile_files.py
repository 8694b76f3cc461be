"""Where profiles are: a folder, its ranks, and in each the files that are recognised by what they hold.

The profilers of MindSpore and torch_npu write `<rank>_ascend_ms/ASCEND_PROFILER_OUTPUT` (`_ascend_pt`), CANN's msprof
`PROF_*/mindstudio_profiler_output`. The first keeps the second beside it: then the first counts.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from mindswap.errors import CostError
from mindswap.simulator.cost.profile import Profile
from mindswap.simulator.cost.profile_tables import (
    Content,
    Progress,
    read_kernels,
    read_peak,
    read_steps,
    read_transfers,
    recognise_table,
)
from mindswap.simulator.cost.profile_trace import read_copies

OUTPUT_FOLDERS = ("ASCEND_PROFILER_OUTPUT", "mindstudio_profiler_output")
RANK_ENDINGS = ("_ascend_ms", "_ascend_pt")
# What may be there in place of tables: what that says, and what to do.
UNREADABLE = (
    (
        "aicore_intermediate_",
        "this profile is of a MindSpore before 2.4 and says nothing about shapes",
        "profile with MindSpore 2.9 and profiler_level=ProfilerLevel.Level2",
    ),
    # `ascend_mindspore_profiler_0.db`, `ascend_pytorch_profiler_0.db`, `msprof_0.db`: of ExportType.Db alone.
    (
        r"(ascend_\w+_profiler|msprof)\w*\.db$",
        "this profile was exported as a database: it has no table of kernels",
        "profile with export_type=[ExportType.Text]; where PROF_* is below it,\n"
        "             msprof --export=on --output=PATH makes tables of what is there",
    ),
    (
        r"PROF_\d+|device_\d+",
        "this profile was not analysed yet: it has no table of kernels",
        "mindspore.profiler.profiler.analyse(PATH), torch_npu.profiler.profiler.analyse(PATH), or\n"
        "             msprof --export=on --output=PATH",
    ),
    (
        "",
        "no kernel_details.csv or op_summary_*.csv below it",
        "name the output_path of the profiler, or the folder of a rank in it",
    ),
)
# Those of the frameworks go before those of msprof.
KERNEL_TABLES = (Content.KERNELS, Content.SUMMARY)
MAX_DEPTH = 6
# Enough of a JSON file to tell what it is.
SNIFFED_BYTES = 2**16
MAX_INFO_BYTES = 2**20
AS_WRITTEN = "analyse the profile again and leave its files as they are: a spreadsheet writes other ones"


# The first that is found in the beginning of the file. A matrix of communication is known as well, and left out.
JSON_SIGNS = (
    ('"traceEvents"', Content.TRACE),
    ('"ph"', Content.TRACE),
    ('"Transport Type"', None),
    ('"Communication Bandwidth Info"', Content.COMMUNICATION),
    ('"Communication Time Info"', Content.COMMUNICATION),
    ("profiler_level", Content.INFO),
)


# A file of such a name that holds something else is broken, which its reader says.
NAMES = (
    ("kernel_details*.csv", Content.KERNELS),
    ("op_summary*.csv", Content.SUMMARY),
    ("step_trace_time*.csv", Content.STEPS),
    ("trace_view*.json", Content.TRACE),
    ("msprof_*.json", Content.TRACE),
    ("communication.json", Content.COMMUNICATION),
)


@dataclass(frozen=True)
class RankFiles:
    """The files of one rank."""

    folder: Path  # where they are
    files: dict[Content, tuple[Path, ...]]  # by what they hold

    def get(self, *kinds: Content) -> tuple[Path, ...]:
        """Those of the first kind that there is."""
        return next((self.files[kind] for kind in kinds if kind in self.files), ())


def find_profiles(path: Path) -> tuple[RankFiles, ...]:
    """The files of each rank below a folder, or a single file.

    Args:
        path: the folder that the profiler was given, that of a rank, that with the files, or a table of kernels.

    Raises:
        CostError: if there is no profile.
    """
    if path.is_file():
        kind = _recognise(path)
        if kind is None:
            raise CostError(f"{path}: is no file of a profiler that is known here\n    fix:     name its folder")
        return (RankFiles(path.parent, {kind: (path,)}),)
    if not path.is_dir():
        raise CostError(f"{path}: no such folder\n    fix:     name the output_path that the profiler was given")
    ranks: dict[Path, list[RankFiles]] = {}
    names: list[str] = []
    for folder in _walk(path, names):
        found = _recognise_all(folder)
        if any(kind in found for kind in KERNEL_TABLES):
            ranks.setdefault(_rank_of(folder), []).append(RankFiles(folder, found))
    chosen = [min(entries, key=lambda entry: Content.KERNELS not in entry.files) for entries in ranks.values()]
    if not chosen:
        what, fix = next(rest for sign, *rest in UNREADABLE if any(re.match(sign, name) for name in (*names, "")))
        raise CostError(f"{path}: {what}\n    fix:     {fix}")
    return tuple(_with_info(entry) for entry in chosen)


def read_bytes(ranks: Iterable[RankFiles]) -> int:
    """Bytes of all traces and tables of kernels, which are what takes long to read."""
    files = [file for rank in ranks for file in (*rank.get(*KERNEL_TABLES), *rank.get(Content.TRACE))]
    return sum(file.stat().st_size for file in files)


def load_profile(path: Path, progress: Callable[[int], Progress] | None = None) -> Profile:
    """Read the profiles of all ranks below a folder as one; `progress`, given the bytes to read, is told of those read.

    Raises:
        CostError: if there is none, or a file is not what a profiler writes.
    """
    ranks = find_profiles(path)
    told = progress(read_bytes(ranks)) if progress else None
    try:
        return _load(path, ranks, told)
    except CostError as error:
        raise error if "fix:" in str(error) else CostError(f"{error}\n    fix:     {AS_WRITTEN}") from error


def _load(path: Path, ranks: Sequence[RankFiles], progress: Progress | None) -> Profile:
    def files(*kinds: Content) -> list[Path]:
        return [file for rank in ranks for file in rank.get(*kinds)]

    kernels = tuple(kernel for file in files(*KERNEL_TABLES) for kernel in read_kernels(file, progress))
    traces = [(number, file) for number, rank in enumerate(ranks) for file in rank.get(Content.TRACE)]
    found = [read_copies(file, number, progress) for number, file in traces]
    copies = sorted((copy for own, _ in found for copy in own), key=lambda copy: (copy.rank, copy.start_ns))
    peaks = map(read_peak, files(Content.BLOCKS, Content.MEMORY))
    has_traces = all(rank.get(Content.TRACE) for rank in ranks)
    return Profile(
        folder=str(path if len(ranks) > 1 else ranks[0].folder),
        kernels=kernels,
        copies=tuple(copies),
        steps=tuple(step for file in files(Content.STEPS) for step in read_steps(file)),
        peak_memory_bytes=max((peak for peak in peaks if peak is not None), default=None),
        notes=() if has_traces else ("no trace_view.json: the links to the host keep their figures",),
        transfers=tuple(transfer for file in files(Content.COMMUNICATION) for transfer in read_transfers(file)),
        num_ranks=len(ranks),
        num_unsized_copies=sum(num_unsized for _, num_unsized in found),
        level=_level(ranks[0].get(Content.INFO)),
    )


def _walk(path: Path, names: list[str]) -> Iterator[Path]:
    """The folder and those below it, in order, links left out; `names` gets the names of everything seen."""
    for parent, folders, files in os.walk(path):
        depth = len(Path(parent).relative_to(path).parts)
        folders[:] = sorted(folders) if depth < MAX_DEPTH else []
        names += [*folders, *files]
        yield Path(parent)


def _rank_of(folder: Path) -> Path:
    """The folder that all files of a rank are below."""
    for parent in (folder, *folder.parents):
        if parent.name.endswith(RANK_ENDINGS):
            return parent
    return folder.parent if folder.name in OUTPUT_FOLDERS else folder


def _recognise_all(folder: Path) -> dict[Content, tuple[Path, ...]]:
    found: dict[Content, tuple[Path, ...]] = {}
    try:
        files = sorted(folder.iterdir())
    except OSError as error:
        raise CostError(f"{folder}: cannot be read: {error.strerror}") from error
    for file in files:
        kind = _recognise(file)
        if kind is not None:
            found[kind] = (*found.get(kind, ()), file)
    return found


def _recognise(file: Path) -> Content | None:
    if not file.is_file() or file.suffix not in (".csv", ".json"):
        return None
    by_name = next((kind for pattern, kind in NAMES if fnmatchcase(file.name, pattern)), None)
    if file.suffix == ".csv":
        return recognise_table(file) or by_name
    try:
        with file.open("rb") as stream:
            text = stream.read(SNIFFED_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    return next((kind for sign, kind in JSON_SIGNS if sign in text), by_name)


def _with_info(rank: RankFiles) -> RankFiles:
    """With the files that stand beside the folder: settings of the profiler, blocks of memory."""
    beside = _recognise_all(rank.folder.parent)
    wanted = {Content.INFO, Content.BLOCKS} & beside.keys() - rank.files.keys()
    return RankFiles(rank.folder, {**rank.files, **{kind: beside[kind] for kind in wanted}})


def _level(files: tuple[Path, ...]) -> str:
    """`Level1` from `profiler_info_0.json`, wherever it stands there; empty if it does not."""
    for file in files:
        try:
            text = file.read_text("utf-8", "replace")[:MAX_INFO_BYTES]
            found = re.search(r'profiler_level"\s*:\s*' + r'"(?:ProfilerLevel\.)?(Level\w+)"', text)
        except OSError:
            continue
        if found:
            return found[1]
    return ""
