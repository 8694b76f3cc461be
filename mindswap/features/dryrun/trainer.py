"""`mindswap dryrun` of a configuration of MindFormers 2.x: requests, runs, extrapolation and notes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mindswap.config.nodes import Document
from mindswap.config.render import document_from_data
from mindswap.features.dryrun.backend import StatusCallback
from mindswap.features.dryrun.cann_stand_ins import has_cann, prepare_stand_ins
from mindswap.features.dryrun.depths import DryRunOptions
from mindswap.features.dryrun.rank_runs import run_folder
from mindswap.features.dryrun.sharded_rank import ShardedRank, highest_rank, read_shards
from mindswap.features.dryrun.trainer_config import (
    PARALLEL_KEYS,
    TrainerRequest,
    is_1f1b,
    num_micro_batches,
    require_valid_2x,
    trainer_request,
)
from mindswap.features.dryrun.trainer_report import TrainerDryRun
from mindswap.features.dryrun.trainer_run import require_mindformers_2x, run_own_swap, run_trainer
from mindswap.features.dryrun.trainer_step import StepCopies, TrainerStep
from mindswap.policy.formats.mindformers2.effect import SettingsEffect, compute_effect
from mindswap.policy.formats.mindformers2.read import find_mtp_layers, find_num_layers_2x, read_pynative
from mindswap.policy.formats.mindformers2.settings import OWN_ENGINE, SWAP_ENGINE
from mindswap.policy.formats.mindformers2.tables import load_model
from mindswap.rules.machine.software import installed_version
from mindswap.simulator.cost.budget import budget_of_device
from mindswap.simulator.cost.device_costs import find_costs
from mindswap.units import format_bytes, format_count

STAND_IN_NOTE = (
    "HyperParallel is not installed: mindswap's stand-in for one process swaps and recomputes, written from its "
    "documentation"
)
APPLIED_NOTE = (
    "MindFormers 2.1.0 applies swap and recompute only with several processes, and ignores them silently in one "
    "process: the dry run applies them as with several"
)

# Settings that `sharded_rank` computes.
COMPUTED = frozenset({"data_parallel_shard", "expert_parallel"})
GROUPED_NOTE = "Muon updates weights in groups: the peak of the optimizer is on no line through two depths (--full)"


def dry_run_trainer(
    document: Document,
    options: DryRunOptions,
    report_status: StatusCallback,
    title: str,
    device: str | None = None,
    overrides: dict[str, str] | None = None,
    num_cards: int | None = None,
) -> TrainerDryRun:
    """Dry run one rank of a configuration of MindFormers 2.x in one process.

    Args:
        document: the configuration.
        options: layers, and the folder to keep; the other options are of graph mode.
        report_status: called with each line on the progress.
        title: name for reports.
        device: name or file of the device.
        overrides: device properties to replace, by name.
        num_cards: cards of the training, which determine the number of micro-batches.

    Raises:
        PolicyError: the configuration has errors, or this Python has no MindFormers 2.x.
        LaunchError: the dry run is not possible or failed.
    """
    require_valid_2x(document)
    depths = options.layers or (None,)
    requests = [trainer_request(document, depth, num_cards) for depth in sorted(depths, key=lambda depth: depth or 0)]
    shards = read_shards(document, num_cards)
    budget = budget_of_device(find_costs([document], device, overrides or {}).device)
    require_mindformers_2x(document)
    prepare_stand_ins(report_status)
    with run_folder(options.folder) as folder:
        runs = [
            [
                _run_depth(replace(request, stage=stage), _own_effect(document, request), folder, title, report_status)
                for stage in range(request.num_stages)
            ]
            for request in requests
        ]
    steps = [max(stages, key=lambda step: step.used_peak_bytes) for stages in runs]
    num_layers = find_num_layers_2x(document) or steps[-1].num_layers
    step = steps[-1] if len(steps) == 1 else extrapolate(steps[0], steps[1], num_layers)
    is_alone = len(steps) == 1 and step.num_layers != num_layers
    shown = runs[-1] if len(runs[-1]) > 1 else [step]
    num_run = requests[-1].sample["num_micro_batches"]
    rank = None if shards is None else highest_rank(shown, shards, num_run)
    return TrainerDryRun(
        title=title,
        num_layers=num_layers,
        step=step,
        depths=tuple(step.num_layers for step in steps),
        has_cann=has_cann(),
        budget_bytes=None if is_alone else budget.usable_bytes,
        margin_permille=budget.margin_permille,
        stages=tuple(runs[-1]) if len(runs[-1]) > 1 else (),
        rank=rank,
        notes=(
            *_stage_notes(document, runs[-1]),
            *_notes(document, step, num_cards, requests[-1], rank),
            *([GROUPED_NOTE] if len(steps) > 1 and document.value("optimizer", "type") == "Muon" else []),
        ),
    )


def _own_effect(document: Document, request: TrainerRequest) -> SettingsEffect | None:
    """Return the settings of each layer that mindswap's own executor swaps; None if it does not run."""
    if document.value("mindswap", SWAP_ENGINE) != OWN_ENGINE or not isinstance(request.config.get("swap"), dict):
        return None
    own = {"mindswap": {SWAP_ENGINE: OWN_ENGINE}}
    short = document_from_data({**request.config, **own}, document.file, document)
    num_mtp_layers = find_mtp_layers(short)
    settings = read_pynative(short, request.num_layers)
    if not settings.is_swap_enabled:
        return None
    return compute_effect(settings, load_model(short, request.num_layers, num_mtp_layers))


def _run_depth(
    request: TrainerRequest, effect: SettingsEffect | None, folder: Path, title: str, report_status: StatusCallback
) -> TrainerStep:
    name = f"{title}: {format_count(request.num_layers, 'layer')}"
    if request.num_stages > 1:
        name += f", stage {request.stage}"
    report_status(f"{name}: starting MindFormers")
    run_folder, report = (
        folder / f"layers_{request.num_layers}_stage_{request.stage}",
        lambda line: report_status(f"{name}: {line}"),
    )
    if effect is None:
        step = run_trainer(request, run_folder, report)
    else:
        step = run_own_swap(request, effect, run_folder, report)
    report_status(f"{name}: peak {round(step.used_peak_bytes / 2**20)} MiB, {step.wall_s:.0f} s")
    return step


def extrapolate(low: TrainerStep, high: TrainerStep, num_layers: int) -> TrainerStep:
    """Return the memory with more layers, on the straight line through two depths.

    Args:
        low: the step with fewer layers.
        high: the step with more layers.
        num_layers: layers of the full model.
    """
    factor = (num_layers - low.num_layers) / (high.num_layers - low.num_layers)

    def on_line(first: int, second: int) -> int:
        return round(first + (second - first) * factor)

    names = (
        "before_bytes",
        "kept_bytes",
        "gradient_bytes",
        "weight_bytes",
        "state_bytes",
        "trained_bytes",
        "expert_bytes",
        "expert_weight_bytes",
    )
    sizes: dict[str, Any] = {
        name: on_line(getattr(low, name), getattr(high, name)) for name in (*names, "reserved_bytes")
    }
    copies = None
    if low.copies is not None and high.copies is not None:
        pairs = zip(vars(low.copies).items(), vars(high.copies).values(), strict=True)
        copies = StepCopies(**{name: on_line(first, second) for (name, first), second in pairs})
    return replace(
        high,
        num_layers=num_layers,
        phase_peaks={phase: on_line(peak, high.phase_peaks[phase]) for phase, peak in low.phase_peaks.items()},
        unit_bytes=_units_of_all(low.num_layers, high, num_layers),
        added_by_layer=(),
        added_by_cell=(),
        wrappers=(),
        backward_profile=(),
        layer_copies=(),
        copies=copies,
        **sizes,
    )


def _units_of_all(num_low: int, high: TrainerStep, num_layers: int) -> tuple[tuple[int, int], ...]:
    """Return the units of FSDP with more layers: each added one is as large as the largest between both depths.

    Args:
        num_low: layers of the run with fewer layers.
        high: the step with more layers; its units are the one before the layers, the layers, those for multi-token
            prediction, and the one after them.
        num_layers: layers of the full model.
    """
    above = high.unit_bytes[num_low + 1 : high.num_layers + 1]
    if not above:
        return high.unit_bytes
    experts, others = zip(*above, strict=True)
    added = ((max(experts), max(others)),) * (num_layers - high.num_layers)
    return (*high.unit_bytes[: high.num_layers + 1], *added, *high.unit_bytes[high.num_layers + 1 :])


def _own_swap_note(report: Mapping[str, Any]) -> str:
    """Return what mindswap's own executor did, of its report."""
    as_predicted = "all as predicted" if report["is_as_predicted"] else f"{report['num_as_predicted']} as predicted"
    held = ""
    if report["held_bytes"]:
        held = f"; {format_bytes(report['held_bytes'])} were not freed, as other code references them"
    return (
        f"mindswap's own executor swapped {report['num_passes']} passes, {as_predicted}, with the "
        f"schedule of a step that a dry run recorded before: no pass ran without swap{held}"
    )


def _stage_notes(document: Document, stages: Sequence[TrainerStep]) -> list[str]:
    """Return how the pipeline stages ran; nothing without stages."""
    if len(stages) == 1:
        return []
    highest = max(stages, key=lambda step: step.used_peak_bytes).stage
    in_flight = (
        "with one micro-batch in flight for itself and for each stage after it (1F1B)"
        if is_1f1b(document)
        else "with all micro-batches in flight that its schedule puts there"
    )
    return [
        f"each pipeline stage ran in a process of its own, {in_flight}; memory by phase, and what cells add, are of "
        f"stage {highest}, the one with the highest peak"
    ]


def _notes(
    document: Document, step: TrainerStep, num_cards: int | None, request: TrainerRequest, rank: ShardedRank | None
) -> list[str]:
    notes = [APPLIED_NOTE] if step.set_lines and request.num_stages == 1 else []
    if step.own_swap is not None:
        notes.append(_own_swap_note(step.own_swap))
    elif step.uses_stand_in and (step.set_lines or (step.copies and step.copies.out_bytes)):
        notes.append(STAND_IN_NOTE)
    left_out = {
        name: size
        for name, size in find_left_out(document, num_cards).items()
        if (name != "pipeline_parallel" or request.num_stages == 1) and (rank is None or name not in COMPUTED)
    }
    notes += left_out_notes(left_out, step)
    if rank is None and COMPUTED & left_out.keys() and num_cards is None:
        notes.append("with --cards N, of the training, a rank with FSDP and expert parallelism is computed")
    count = num_micro_batches(document, num_cards)
    num_run = request.sample["num_micro_batches"]
    if count > num_run:
        notes.append(
            f"{num_run} of {count} micro-batches ran: the others need no more. With --cards N, of "
            "the training, a rank has fewer"
        )
    if document.value("optimizer", "type") == "Muon" and installed_version("mindspore").startswith("2.10."):
        notes.append("Muon sets cube_math_type, which MindSpore has from 2.11 on: left out, it needs no memory")
    return notes


def left_out_notes(left_out: Mapping[str, object], step: TrainerStep) -> Iterator[str]:
    """Yield a note for each setting that one process does not have, with the size of what it would divide."""
    static_bytes = step.weight_bytes + step.state_bytes + step.gradient_bytes
    static = f"{format_bytes(static_bytes)} of weights, float32 weights, states and gradients"
    activations = f"{format_bytes(step.kept_bytes)} of activations"
    effects = {
        "data_parallel_shard": f"FSDP divides {static} by its ranks",
        "expert_parallel": f"its ranks divide {format_bytes(step.expert_bytes)} of weights and states of experts",
        "tensor_parallel": f"its ranks divide those of linear layers, of {static}, and most of {activations}",
        "context_parallel": f"its ranks divide {activations}",
        "pipeline_parallel": f"its stages divide {static}; each holds activations of all micro-batches in flight",
        "cpu_offload": f"{format_bytes(step.state_bytes)} of float32 weights and states are on the host",
    }
    for name, value in left_out.items():
        yield f"{name}: {value} is left out: {effects[name]}"
    if left_out:
        less = "less of weights and states, but maybe more activations" if "pipeline_parallel" in left_out else "less"
        yield f"what is left out needs several processes and HyperParallel: each rank of the file holds {less}"


def find_left_out(document: Document, num_cards: int | None) -> Mapping[str, object]:
    """Return the settings of `parallelism` that one process does not have, by key."""
    names = (*PARALLEL_KEYS, "expert_parallel")
    left_out: dict[str, object] = {name: size for name in names if (size := document.count("parallelism", name)) > 1}
    shards = document.value("parallelism", "data_parallel_shard")
    if (shards in (None, -1) and (num_cards or 0) > 1) or (isinstance(shards, int) and shards > 1):
        left_out["data_parallel_shard"] = shards if shards is not None else -1
    if document.value("parallelism", "cpu_offload") is True:
        left_out["cpu_offload"] = True
    return left_out
