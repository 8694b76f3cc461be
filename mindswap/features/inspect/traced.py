"""Activation memory of a step of MindFormers 2.x, from its tracked dry run."""

from collections import Counter
from collections.abc import Sequence

from mindswap.features.inspect.report import LayerMemoryReport
from mindswap.graph.analysis.liveness import Peak
from mindswap.graph.analysis.saved_tensors import LayerMemory, OperatorMemory
from mindswap.graph.model import Node
from mindswap.policy.model import Policy
from mindswap.pynative.step_index import BlockFacts
from mindswap.pynative.step_schedule import Purpose, Schedule
from mindswap.simulator.memory import profile_memory
from mindswap.simulator.program import OpKind
from mindswap.simulator.traced_step import TracedStepModel


def measure_traced(model: TracedStepModel, policy: Policy) -> LayerMemoryReport:
    """Return what backward holds in each layer, by the operator that saves it, in one micro-batch.

    Args:
        model: model of the step.
        policy: its policy.
    """
    treatments = _treatments(model.schedule(policy))
    rows: dict[int | None, dict[str, Counter[str]]] = {layer: {} for layer in (*range(model.index.num_layers), None)}
    for number, facts in enumerate(model.index.blocks):
        if not facts.is_saved or facts.micro_batch:
            continue
        layer, path = _holder(model, facts)
        sizes = rows[layer].setdefault(path, Counter())
        sizes[treatments.get(number, "kept_bytes")] += facts.block.size_bytes
        if layer is not None and _is_moved_alone(model, facts, layer):
            sizes["swappable_bytes"] += facts.block.size_bytes
    layers = tuple(
        LayerMemory(
            layer if layer is None else model.layer_indices[layer],
            tuple(OperatorMemory(path, path.rpartition(".")[2], **sizes) for path, sizes in row.items()),
        )
        for layer, row in rows.items()
    )
    return LayerMemoryReport(layers, _peak(model, policy), model.captured.notes)


def measure_stages(stages: Sequence[TracedStepModel], policy: Policy) -> LayerMemoryReport:
    """Return what backward holds in each layer of all pipeline stages, and the peak of the stage that needs most.

    Args:
        stages: model of each stage.
        policy: its policy.
    """
    reports = [measure_traced(stage, policy) for stage in stages]
    rows = [row for report in reports for row in report.layers]
    outside = tuple(operator for row in rows if row.layer_index is None for operator in row.operators)
    layers = sorted((row for row in rows if row.layer_index is not None), key=lambda row: row.layer_index or 0)
    highest = max(range(len(stages)), key=lambda number: stages[number].simulate(policy).peak_bytes)
    return LayerMemoryReport((*layers, LayerMemory(None, outside)), reports[highest].peak, reports[0].notes)


def _treatments(schedule: Schedule) -> dict[int, str]:
    """Return the treatment of each saved block that is not kept."""
    treatments: dict[int, str] = {}
    for lifetime in schedule.lifetimes:
        if lifetime.purpose is Purpose.OFFLOADED:
            treatments[lifetime.block] = "swapped_bytes"
        elif lifetime.purpose is Purpose.FORWARD_ONLY:
            treatments[lifetime.block] = "recomputed_bytes"
    return treatments


def _holder(model: TracedStepModel, facts: BlockFacts) -> tuple[int | None, str]:
    """Return layer and path of the operator that saves a block; of the one that makes it if that is not known."""
    number = min((read.saver for read in facts.reads), default=facts.operator)
    if number < 0:
        return None, "outside"
    operators = model.index.trace.operators
    is_shared = len({operators[read.saver].layer_index for read in facts.reads} - {None}) > 1
    holder = operators[facts.operator] if is_shared and facts.operator >= 0 else operators[number]
    path = ".".join(holder.path)
    return holder.layer_index, path if holder.layer_index is not None else f"outside.{path}"


def _is_moved_alone(model: TracedStepModel, facts: BlockFacts, layer: int) -> bool:
    """Return whether swap of the operator's cell frees a block: it is neither protected nor an output of the layer."""
    last = model.index.forward_spans[0, layer].last
    return bool(facts.reads) and not facts.is_protected and all(use <= last for use in facts.forward_uses)


def _peak(model: TracedStepModel, policy: Policy) -> Peak:
    simulated = model.simulate(policy)
    profile, ops = profile_memory(simulated.timeline, 0), simulated.timeline.program.ops
    op = int((simulated.timeline.op_start_ns <= profile.peak_ns).sum()) - 1
    label = str(simulated.timeline.program.labels[ops.label[op]])
    cell, _, name = label.rpartition(" ")
    layer = int(ops.layer[op])
    node = Node(
        name="peak",
        op=name,
        layer_index=layer if layer >= 0 else None,
        cell_path=cell,
        scope=label,
        inputs=(),
        outputs=(),
        attributes={},
    )
    return Peak(profile.peak_bytes, node, bool(ops.kind[op] == OpKind.FORWARD))
