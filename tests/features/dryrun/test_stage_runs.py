"""Dry runs put together: where in a step the peak is, and what a line through two short models says of a long one."""

import pytest

from mindswap.features.dryrun.depths import ReducedModel, Reduction
from mindswap.features.dryrun.memory_pool import DryRun, PoolBlock
from mindswap.features.dryrun.phases import StepPosition, find_phase_peaks, find_positions
from mindswap.features.dryrun.stage_runs import DryRunReport, scale_parts, stage_run
from mindswap.simulator.memory_parts import MemoryPart
from tests.report.simulated import small_report

NET = "Default/network-LlamaForCausalLM/model-LlamaModel"


def layer(index: int, is_backward: bool = False) -> str:
    head = "Gradients/" if is_backward else ""
    return f"{head}{NET}/layers-CellList/{index}-LLamaDecodeLayer/attention-LLamaAttention/MatMul-op{index}"


def run_of(levels: list[tuple[str, int]]) -> DryRun:
    """Operators in order, each with the bytes that are live while it runs."""
    blocks = [
        PoolBlock(2 * i, 2 * i + 2, size, "Kernel", name, 0, 2 * i) for i, (name, size) in enumerate(levels) if size
    ]
    operators = {2 * i: name for i, (name, _) in enumerate(levels)}
    peak = max(size for _, size in levels)
    return DryRun(0, peak, peak + 7, tuple(blocks), operators, (), (), 1.0)


def model(num_layers: int) -> DryRun:
    """Forward ends with 100 + 10 n at the loss, backward with 40 + 30 n at the embedding."""
    forward = [(layer(i), 50 + 10 * i) for i in range(num_layers)]
    backward = [(layer(i, True), 40) for i in reversed(range(num_layers))]
    return run_of(
        [
            (f"{NET}/tok_embeddings-LlamaEmbedding/Gather-op0", 20),
            *forward,
            (f"{NET}/loss-CrossEntropyLoss/OneHot-op0", 100 + 10 * num_layers),
            (f"Gradients/{NET}/norm_out-LlamaRMSNorm/RmsNormGrad-op0", 60),
            *backward,
            (f"Gradients/{NET}/tok_embeddings-LlamaEmbedding/UnsortedSegmentSum-op0", 40 + 30 * num_layers),
            ("Default/optimizer-AdamW/GraphKernel_Mul_fusion-op9", 3 * num_layers),
        ]
    )


def test_a_fused_operator_is_where_the_one_before_it_is():
    places = find_positions(run_of([(layer(3), 10), ("Default/GraphKernel_Mul_fusion-op0", 20)]))
    assert places[2] == StepPosition(False, "in the layers", 3, "Default/GraphKernel_Mul_fusion-op0")


def test_the_parts_of_a_step():
    found = {category: live for category, (_, live) in find_phase_peaks(model(2)).items()}
    assert found == {
        (False, "before the layers"): 20,
        (False, "in the layers, first half"): 50,
        (False, "in the layers, second half"): 60,
        (False, "after the layers"): 120,
        (True, "before the layers"): 60,
        (True, "in the layers, first half"): 40,
        (True, "in the layers, second half"): 40,
        (True, "after the layers"): 100,
        (True, "optimizer"): 6,
    }


def test_all_layers_are_taken_as_they_are():
    stage = stage_run(0, 3, {3: model(3)})
    assert (stage.used_peak_bytes, stage.actual_peak_bytes) == (130, 137)
    assert (stage.position.is_backward, stage.position.where, stage.position.layer) == (
        False,
        "after the layers",
        None,
    )


@pytest.mark.parametrize(("num_layers", "peak", "is_backward"), [(2, 120, False), (4, 160, True), (32, 1000, True)])
def test_another_moment_takes_over_on_the_way_to_many_layers(num_layers, peak, is_backward):
    # at 1 and 2 layers the loss is highest, 110 and 120: its line gives 140 at 4, backward has 40 + 30 * 4
    low, high = (ReducedModel(tuple(range(count)), (count,)) for count in (1, 2))
    stage = stage_run(0, num_layers, {1: model(1), 2: model(2)}, Reduction(low, high, num_layers - 2, 0.004))
    assert (stage.used_peak_bytes, stage.position.is_backward) == (peak, is_backward)
    # Fragmentation is measured with all layers only.
    assert stage.is_exact == (num_layers == 2)
    assert (stage.error, stage.actual_peak_bytes) == ((None, 127) if num_layers == 2 else (0.004, None))


def test_simulated_parts_are_those_of_the_simulated_peak_without_workspace():
    simulated, run = small_report(), stage_run(0, 2, {2: model(2)})
    part_bytes = DryRunReport("case", (run,), simulated, 2, (2,), None, False).simulated_part_bytes(run)
    (stage,) = simulated.stages
    assert list(part_bytes) == list(run.part_bytes) == list(MemoryPart)
    assert stage.parts[MemoryPart.WORKSPACE] > 0
    assert sum(part_bytes.values()) == stage.peak_bytes - stage.parts[MemoryPart.WORKSPACE]


@pytest.mark.parametrize("peak", [100, 90, 130])
def test_extrapolated_parts_add_up_to_the_peak(peak):
    parts = dict.fromkeys(MemoryPart, 0)
    parts |= {MemoryPart.WEIGHTS: 40, MemoryPart.LOSS: 30, MemoryPart.GRADIENTS: 30, MemoryPart.COMMUNICATION: -10}
    scaled = scale_parts(parts, peak)
    assert sum(scaled.values()) == peak and min(scaled.values()) == 0
    assert scaled[MemoryPart.WEIGHTS] == 40
    assert scaled[MemoryPart.LOSS] == scaled[MemoryPart.GRADIENTS] == (peak - 40) // 2
