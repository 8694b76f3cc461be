"""Report of a dry run of MindFormers 2.x as text and JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mindswap.features.dryrun.sharded_rank import ShardedRank, rank_to_json
from mindswap.features.dryrun.trainer_step import TrainerStep
from mindswap.policy.wording import index_runs, name_indices
from mindswap.report.problems import escape
from mindswap.report.simulation_text import describe_budget
from mindswap.report.tables import NOTHING, attributes, format_table, group_equal
from mindswap.simulator.memory_parts import MemoryPart
from mindswap.units import format_bytes, format_count

MIN_CELL_BYTES = 1 << 19  # smaller cells would be shown as 0 MiB
NO_KERNELS = (
    "a dry run launches no kernel: no times, no values, no workspaces, and nothing runs out of memory; nothing was run "
    "on a card"
)


@dataclass(frozen=True, eq=False)
class TrainerDryRun:
    """Memory of one rank of a configuration of MindFormers 2.x.

    Attributes:
        title: name of the configuration.
        num_layers: layers of the full model, without those for multi-token prediction.
        step: memory of the step, measured or extrapolated; of the pipeline stage with the highest peak.
        depths: layers of the models that ran.
        has_cann: whether the real CANN libraries were used.
        budget_bytes: memory budget of a card; None for no limit.
        margin_permille: part of the budget that plans keep free.
        notes: caveats for the reader.
        stages: memory of each pipeline stage; empty without stages.
        rank: computed memory of a rank with FSDP and expert parallelism; None without, or without `--cards`.
    """

    title: str
    num_layers: int
    step: TrainerStep
    depths: tuple[int, ...]
    has_cann: bool
    budget_bytes: int | None = None
    margin_permille: int = 0
    notes: tuple[str, ...] = ()
    stages: tuple[TrainerStep, ...] = ()
    rank: ShardedRank | None = None

    @property
    def is_exact(self) -> bool:
        """Return whether all layers ran."""
        return self.num_layers in self.depths

    @property
    def fits(self) -> bool:
        """Return whether the peak is within the budget."""
        return self.budget_bytes is None or self.step.used_peak_bytes <= self.budget_bytes

    @property
    def basis(self) -> str:
        """How the memory is known."""
        layers = format_count(self.num_layers, "layer")
        if self.is_exact:
            return f"exact: all {layers}"
        if len(self.depths) == 1:
            return f"{self.depths[0]} of {layers} alone"
        return f"extrapolated to {layers} from depths {' and '.join(map(str, self.depths))}; the error is unknown"


def format_trainer_dry_run(report: TrainerDryRun, other: TrainerDryRun | None = None) -> str:
    """Format the peaks by phase, what is live, and what moved; with `other`, both side by side."""
    reports = [report, *([other] if other is not None else [])]
    lines = [
        f"dry run of {report.title} with MindFormers' own trainer (PyNative) on MindSpore's Ascend backend, without a "
        "card",
        "",
        format_table(["one rank", *map(_column_title, reports)], table_rows([each.step for each in reports])),
        "",
        *(line for each in reports if each.stages for line in (_stage_table(each), "")),
        *(f"{each.title}: {each.basis}" for each in reports),
    ]
    if report.step.added_by_layer and report.step.copies is not None and not report.step.copies.out_bytes:
        lines.append(f"forward of a layer adds: {_layer_sizes(report.step)}")
    lines += _cell_lines(report.step)
    verdict = describe_budget(report.step.used_peak_bytes, report.budget_bytes, report.margin_permille)
    lines += ["", f"needs {format_bytes(report.step.used_peak_bytes)} without workspace: {verdict}".rstrip(": ")]
    lines += [line for each in reports for line in rank_lines(each)]
    notes = dict.fromkeys(note for each in reports for note in each.notes)
    lines += [f"note: {note}" for note in notes]
    libraries = "CANN's own libraries" if report.has_cann else "stand-ins for CANN's libraries"
    lines.append(f"ran with {libraries}; {NO_KERNELS}")
    return "\n".join(escape(line) for text in lines for line in text.split("\n"))


def _column_title(report: TrainerDryRun) -> str:
    return f"{report.title}, stage {report.step.stage}" if report.stages else report.title


STAGE_HEADER = (
    *("pipeline stage", "layers", "peak", "before the step", "kept in flight", "gradients"),
    *("swapped out", "pinned host memory"),
)


def _stage_table(report: TrainerDryRun) -> str:
    """Format a row for each pipeline stage."""
    rows = [
        [
            f"{report.title}, stage {step.stage}",
            ", ".join(index_runs(step.layer_indices)),
            *map(_mib, (step.used_peak_bytes, step.before_bytes, step.kept_bytes, step.gradient_bytes)),
            *map(_mib, (step.copies.out_bytes, step.copies.peak_host_bytes) if step.copies else (None, None)),
        ]
        for step in report.stages
    ]
    return format_table(STAGE_HEADER, rows)


def table_rows(steps: Sequence[TrainerStep]) -> list[list[str]]:
    """Return the rows of the table, one column per step."""
    kept: list[int | None] = [step.kept_bytes for step in steps]  # 0 is not known: a pipeline stage of HyperParallel
    sizes: dict[str, list[int | None]] = {
        "peak of forward and backward": [step.pass_peak_bytes for step in steps],
        "peak of the step": [step.used_peak_bytes for step in steps],
        **{f"  in {phase}": [step.phase_peaks[phase] for step in steps] for phase in steps[0].phase_peaks},
        "before the step": [step.before_bytes for step in steps],
        "  weights": [step.weight_bytes for step in steps],
        "  float32 weights and states": [step.state_bytes for step in steps],
        **({"kept from forward to backward": kept} if any(kept) else {}),
        "gradients after backward": [step.gradient_bytes for step in steps],
    }
    if any(step.copies is None or step.copies.out_bytes for step in steps):
        sizes["swapped out"] = [step.copies.out_bytes if step.copies else None for step in steps]
        sizes["swapped back"] = [step.copies.back_bytes if step.copies else None for step in steps]
        sizes["pinned host memory"] = [step.copies.peak_host_bytes if step.copies else None for step in steps]
    return [[name, *map(_mib, row)] for name, row in sizes.items()]


def rank_lines(report: TrainerDryRun) -> list[str]:
    """Return the lines on the computed memory of a rank with FSDP and expert parallelism; none without.

    Args:
        report: a dry run.
    """
    rank = report.rank
    if rank is None:
        return []
    shards = rank.shards
    gathered = "of two layers at once" if shards.is_resharded else "of all layers, which stay gathered"
    verdict = describe_budget(rank.max_peak_bytes, report.budget_bytes, report.margin_permille)
    if report.budget_bytes is not None and rank.max_peak_bytes > report.budget_bytes:
        verdict = f"it may not fit in {format_bytes(report.budget_bytes)}"
    return [
        f"{report.title}, computed, not run: a rank of {format_count(shards.num_cards, 'card')} with {shards} has",
        f"  {_mib(rank.weight_bytes)} of weights, {_mib(rank.state_bytes)} of float32 weights and states, "
        f"{_mib(rank.gradient_bytes)} of gradients, {_mib(rank.gathered_bytes)} of all-gathered weights {gathered}",
        f"  and needs at most {format_bytes(rank.max_peak_bytes)}: {verdict}".rstrip(": "),
    ]


def _cell_lines(step: TrainerStep) -> list[str]:
    """Format what the forward of each cell adds, largest first: a line for equal layers, and a title."""
    texts = []
    for sizes in step.added_by_cell:
        largest = sorted(sizes.items(), key=lambda entry: -entry[1])
        texts.append(", ".join(f"{name} {_mib(size)}" for name, size in largest if size >= MIN_CELL_BYTES))
    groups = [
        (indices, text)
        for indices, text in group_equal(texts, lambda text: text, step.layer_indices or range(len(texts)))
        if text
    ]
    lines = [f"  {name_indices('layer', indices)}: {text}" for indices, text in groups]
    return ["forward adds, by cell:", *lines] if lines else []


def _layer_sizes(step: TrainerStep) -> str:
    """Format sizes of consecutive layers: `layer 0 216 MiB, layers 1-15 477 MiB each`."""
    runs: list[tuple[int, int, str]] = []  # first, last, size
    indices = step.layer_indices or range(len(step.added_by_layer))
    for index, size in zip(indices, map(_mib, step.added_by_layer), strict=True):
        if runs and runs[-1][2] == size:
            runs[-1] = (runs[-1][0], index, size)
        else:
            runs.append((index, index, size))
    return ", ".join(
        f"layer {first} {size}" if first == last else f"layers {first}-{last} {size} each" for first, last, size in runs
    )


def _mib(size_bytes: int | None) -> str:
    return NOTHING if size_bytes is None else f"{round(size_bytes / 2**20)} MiB"


def trainer_dry_run_to_json(report: TrainerDryRun) -> dict[str, Any]:
    """Return the report as plain data for `--json`, with the keys of a dry run in graph mode; sizes in bytes."""
    step = report.step
    peak_bytes, reserved_bytes = step.used_peak_bytes, step.reserved_bytes
    return {
        "dry_run": True,
        **attributes(report, "title num_layers has_cann budget_bytes fits"),
        "depths": list(report.depths),
        "used_peak_bytes": peak_bytes,
        "actual_peak_bytes": reserved_bytes,
        "peak_bytes": peak_bytes,
        "counts_fragments": False,
        "stages": [_stage_to_json(report, step) for step in report.stages or (step,)],
        "notes": list(report.notes),
        **({"computed_rank": rank_to_json(report.rank)} if report.rank is not None else {}),
    }


def _stage_to_json(report: TrainerDryRun, step: TrainerStep) -> dict[str, Any]:
    peak_bytes, copies = step.used_peak_bytes, step.copies
    static = {MemoryPart.WEIGHTS.title: step.weight_bytes, MemoryPart.OPTIMIZER_STATES.title: step.state_bytes}
    return {
        "stage": step.stage,
        "rank": step.stage,
        "num_layers": sum(index < report.num_layers for index in step.layer_indices) or report.num_layers,
        "layer_indices": list(step.layer_indices),
        "used_peak_bytes": peak_bytes,
        "actual_peak_bytes": step.reserved_bytes,
        "is_exact": report.is_exact,
        "basis": report.basis,
        "extrapolation_error": None,
        "workspace_bytes": 0,
        "simulated_peak_bytes": None,
        "moment": {"phase": step.peak_phase, "layer": None, "operator": ""},
        "parts": {**static, MemoryPart.OTHER.title: peak_bytes - sum(static.values())},
        "simulated_parts": None,
        "saved_by_cell": {},
        "phase_peaks": dict(step.phase_peaks),
        "pass_peak_bytes": step.pass_peak_bytes,
        **attributes(step, "before_bytes kept_bytes gradient_bytes"),
        "added_by_layer": list(step.added_by_layer),
        "added_by_cell": [dict(sizes) for sizes in step.added_by_cell],
        "runs": [
            {
                "num_layers": len(step.layer_indices) or step.num_layers,
                "used_peak_bytes": peak_bytes,
                "actual_peak_bytes": step.reserved_bytes,
                "copies_out": copies.num_out if copies else None,
                "copies_back": copies.num_back if copies else None,
                "copied_bytes": copies.back_bytes if copies else None,
                "set_lines": list(step.set_lines),
                "wall_s": round(step.wall_s, 1),
            }
        ],
    }
