"""The plans of several batches and strategies as a table, and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import NamedTuple

from mindswap.config.pipeline_layout import Layout
from mindswap.features.plan.batch_search import PRUNED, BatchPlan
from mindswap.features.plan.states import PLACES
from mindswap.planner.balance import Bubble, split_bubble
from mindswap.planner.strategies import Batch, Strategy
from mindswap.report.tables import format_table
from mindswap.units import format_bytes, format_count, format_time


class FileSetup(NamedTuple):
    """Strategy, batch, layers per stage and place of the optimizer states of the configuration.

    `layout` is None without a pipeline.
    """

    strategy: Strategy
    batch: Batch
    layout: Layout | None
    has_states_on_host: bool = False


WIDTH, NO_BREAK = 110, "\N{NO-BREAK SPACE}"  # names in a line must not be broken
HEADER = ("micro-batches x samples", "samples/step", "step time", "tokens/s/card", "peak memory", "")


def _is_file_setup(batch_plan: BatchPlan, file_setup: FileSetup) -> bool:
    is_same = (batch_plan.strategy, batch_plan.batch, batch_plan.has_states_on_host) == (
        file_setup.strategy,
        file_setup.batch,
        file_setup.has_states_on_host,
    )
    return is_same and batch_plan.layout in (None, file_setup.layout)


def _place(batch_plan: BatchPlan, file_setup: FileSetup) -> str:
    """Return where the optimizer states are, as the end of a name; "" if they are where the configuration has them."""
    is_on_host = batch_plan.has_states_on_host
    return f", states {PLACES[is_on_host]}" if is_on_host != file_setup.has_states_on_host else ""


def format_batches(plans: Sequence[BatchPlan], file_setup: FileSetup) -> str:
    """Format a table of plans, fastest first; below it the candidates without a plan, grouped by reason.

    Pruned candidates are counted only.
    """
    rows = []
    reasons: dict[str, list[str]] = {}
    num_pruned = 0
    has_strategies = any(batch_plan.strategy != file_setup.strategy for batch_plan in plans)
    for batch_plan in plans:
        name = f"{batch_plan.strategy}: " if has_strategies else ""
        name += f"{batch_plan.batch.count} x {batch_plan.batch.size}" + (
            f", layers {batch_plan.layout}" if batch_plan.layout else ""
        )
        name += _place(batch_plan, file_setup)
        name += " (your file)" if _is_file_setup(batch_plan, file_setup) else ""
        if batch_plan.step_plan is None:
            if batch_plan.reason.startswith(PRUNED):
                num_pruned += 1
            else:
                reasons.setdefault(batch_plan.reason, []).append(name)
            continue
        figures = (
            format_time(batch_plan.step_plan.step_time_ns),
            f"{batch_plan.tokens_per_s:.0f}",
            format_bytes(batch_plan.step_plan.peak_bytes),
        )
        rows.append((name, str(batch_plan.batch.num_samples), *figures, "*" if batch_plan.is_on_front else ""))
    subject = "strategies and batches" if has_strategies else "batches"
    searched = sum(batch_plan.is_simulated for batch_plan in plans)
    fits = [batch_plan for batch_plan in plans if batch_plan.step_plan is not None]
    budget = f" for {format_bytes(fits[0].step_plan.plan.budget_bytes)} per card" if fits and fits[0].step_plan else ""
    lines = [
        f"plans{budget}, each simulated; samples are of one data parallel rank",
        "",
        *([format_table(HEADER, rows), ""] if rows else []),
    ]
    for reason, names in reasons.items():
        joined = "; ".join(name.replace(" ", NO_BREAK) for name in names)
        lines += [f"no plan, {reason}:", *(f"    {line.replace(NO_BREAK, ' ')}" for line in wrap(joined, WIDTH))]
    if num_pruned:
        lines.append(f"{format_count(num_pruned, 'candidate')} pruned by lower bound: none can be the fastest")
    lines += [""] if reasons or num_pruned else []
    lines.append(f"{len(plans)} {subject}, {searched} searched, {len(plans) - searched} excluded before")
    if fits:
        lines.append("*: nothing else is as fast with less memory")
        if not _is_file_setup(fits[0], file_setup):
            lines.append(f"fastest: {describe(fits[0])}{_place(fits[0], file_setup)}")
        shown = [
            batch_plan
            for batch_plan in fits
            if batch_plan.layout is not None and (batch_plan is fits[0] or _is_file_setup(batch_plan, file_setup))
        ]
        lines += [f"bubble of layers {batch_plan.layout}: {_bubble(batch_plan)}" for batch_plan in shown]
    else:
        lines.append("nothing fits")
    return "\n".join(lines)


def describe(batch_plan: BatchPlan) -> str:
    """Return strategy, batch and layers of each stage in words."""
    words = f"{batch_plan.strategy}; batch_size {batch_plan.batch.size}, micro-batches {batch_plan.batch.count}"
    return words + (f", layers {batch_plan.layout}" if batch_plan.layout else "")


def _bubble(batch_plan: BatchPlan) -> Bubble:
    if batch_plan.step_plan is None:
        raise AssertionError("a bubble of a batch without a plan")
    run = batch_plan.step_plan.run()
    return split_bubble(run.simulated.timeline, run.model.layout)


def batch_to_json(batch_plan: BatchPlan, file_setup: FileSetup) -> dict[str, object]:
    """Return a candidate as plain data for `--json`; times in ns, sizes in bytes."""
    data: dict[str, object] = {
        "batch_size": batch_plan.batch.size,
        "num_micro_batches": batch_plan.batch.count,
        "data_parallel": batch_plan.strategy.data,
        "model_parallel": batch_plan.strategy.tensor,
        "pipeline_stage": batch_plan.strategy.stages,
        "expert_parallel": batch_plan.strategy.experts,
        "use_seq_parallel": batch_plan.strategy.has_sequence,
        "layers": batch_plan.layout and batch_plan.layout.sizes,
        "states_on_host": batch_plan.has_states_on_host,
        "is_own": _is_file_setup(batch_plan, file_setup),
        "fits": batch_plan.step_plan is not None,
        "reason": batch_plan.reason,
        "is_searched": batch_plan.is_simulated,
        "is_on_front": batch_plan.is_on_front,
    }
    if batch_plan.step_plan is not None:
        data |= {
            "step_time_ns": batch_plan.step_plan.step_time_ns,
            "peak_bytes": batch_plan.step_plan.peak_bytes,
            "tokens_per_s_per_card": batch_plan.tokens_per_s,
        }
        data |= {"bubble": asdict(_bubble(batch_plan))} if batch_plan.layout is not None else {}
    return data
