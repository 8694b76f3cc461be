"""The first part of the demo: each case as it is written, four layers of 7B on 8 ranks, on MindSpore's Ascend backend.

As `mindswap dryrun` does it, without a card: the log lines, the peak of memory with and without swap, and the copies in
the order of launch, as the backend itself has them.
"""

import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mindswap.config.nodes import Document
from mindswap.config.render import document_from_data
from mindswap.config.source import load_document
from mindswap.errors import LaunchError
from mindswap.features.dryrun import NOT_INLINED_NOTE, DryRunOptions, run_stages
from mindswap.features.dryrun.memory_pool import LAYER, DryRun, Kernel
from mindswap.report.tables import format_table
from mindswap.runtime.short_run import switched_off

CONFIGS = Path(__file__).resolve().parent.parent / "configs" / "llama2_7b"
HEADER = [
    "on the Ascend backend",
    "log lines",
    "peak MiB",
    "with fragments",
    "MoveTo out",
    "launched as",
    "back",
    "launched as",
]
ABOUT = (
    "Run by MindSpore's own Ascend backend in its dry run, as `mindswap dryrun` does it: passes, order of launch and\n"
    "memory pool are real, kernels are not launched. No card, no CANN: stand-ins take the place of its libraries."
)


def show_ascend(cases: dict[str, list[str]], folder: Path) -> list[str]:
    """The cases at their width on MindSpore's Ascend backend, and the same without swap and recompute; what fails."""
    documents_of_cases = {case: load_document(str(CONFIGS / f"{case}.yaml")) for case in cases}
    first = documents_of_cases["case4_swap_and_recompute"]
    documents = {
        "swap and recompute off": document_from_data(switched_off(first.data()), first.file),
        **documents_of_cases,
    }

    def run(case: str, document: Document) -> DryRun | str:
        return dry_run_or_reason(document, folder / case.replace(" ", "_"))

    with ThreadPoolExecutor(2) as pool:
        dry_runs = dict(zip(documents, pool.map(run, documents, documents.values()), strict=True))
    rows, remarks, failures = [], [], []
    for case, dry_run in dry_runs.items():
        if isinstance(dry_run, str):
            rows.append([case, "-", "does not build", "-", "-", "-", "-", "-"])
            failures.append(f"{case}: {dry_run}")
            continue
        checks = {"log lines": list(dry_run.set_lines) == cases.get(case, []), "order of copies": is_in_order(dry_run)}
        failures += [f"{case} on Ascend: {name}" for name, holds in checks.items() if not holds]
        copies = [
            word
            for copies in (dry_run.offload_kernels, dry_run.prefetch_kernels)
            for word in describe_copies(dry_run, copies)
        ]
        peaks = [str(dry_run.used_peak_bytes >> 20), str(dry_run.actual_peak_bytes >> 20)]
        if not dry_run.is_inlined:
            remarks.append(textwrap.fill(f"{case}: {NOT_INLINED_NOTE}", 115))
        rows.append([case, "yes" if checks["log lines"] else "NO", *peaks, *copies])
    print("\n".join(["", format_table(HEADER, rows), "", *remarks, ABOUT]), flush=True)
    return failures


def dry_run_or_reason(document: Document, folder: Path) -> DryRun | str:
    """One rank of a case, or why the backend does not build it."""
    try:
        run = run_stages(document, DryRunOptions(ranks=(0,), is_full=True, folder=folder)).stages[0].run
    except LaunchError as error:
        return str(error).splitlines()[0]
    (folder / "order.txt").write_text("\n".join(kernel.name for kernel in run.kernels) + "\n")
    return run


def describe_copies(run: DryRun, copies: list[Kernel]) -> list[str]:
    """Number, and the operators between which they are, in the order of launch."""
    if not copies:
        return ["-", "-"]
    first, last = (run.kernels.index(copies[end]) + 1 for end in (0, -1))
    return [str(len(copies)), f"{first}-{last} of {len(run.kernels)}"]


def is_in_order(run: DryRun) -> bool:
    """Copies out are launched layer after layer, as many back behind them, spread over backward."""
    if not run.offload_kernels:
        return True
    layers = [int(match[1]) for kernel in run.offload_kernels if (match := LAYER.search(kernel.name))]
    out, back = ([run.kernels.index(copy) for copy in copies] for copies in (run.offload_kernels, run.prefetch_kernels))
    backward = [i for i, kernel in enumerate(run.kernels) if kernel.name.startswith("Gradients/")]
    is_spread = back[-1] > backward[len(backward) // 2]
    return len(out) == len(back) and layers == sorted(layers) and max(out) < min(back) and is_spread
