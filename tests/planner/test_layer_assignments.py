"""What a search simulates of a row is what its policy comes to, on models that were really captured."""

import numpy as np
import pytest
import yaml

from mindswap.planner.catalog import build_catalog
from mindswap.planner.effect import NO_INEFFECTIVE_NAMES, is_fully_effective
from mindswap.planner.layer_assignments import LayerAssignments
from mindswap.planner.stage_problem import KEEP
from mindswap.planner.step_problem import PipelineProblem
from mindswap.simulator.program import ONE_WAY
from tests.adapters.edits import edited
from tests.adapters.graphs import QWEN3, ROOT
from tests.planner.loading import capture_apart

LLAMA2 = ROOT / "configs" / "llama2_7b" / "pretrain_llama2_7b.yaml"

pytestmark = pytest.mark.mindspore

DISTANCES = (8, 20)  # of about 60 operators that a layer has in forward
NUM_ROWS = 60
CASTS = {
    "model.model_config.num_hidden_layers": 2,
    "model.model_config.compute_dtype": "bfloat16",
    "model.model_config.fp32_residual_connection": True,
}
SEQUENCE_PARALLEL = {
    "model.model_config.num_layers": 2,
    "parallel_config.data_parallel": 4,
    "parallel_config.model_parallel": 2,
    "parallel_config.use_seq_parallel": True,
}
# With casts several tensors have one name, of which the compiler may move some, or one that never comes back. With
# sequence parallelism equal operators gather the input of products; under one setting they are one.
CONFIGS = {"casts": (QWEN3, CASTS), "sequence parallel": (LLAMA2, SEQUENCE_PARALLEL)}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_row_is_simulated_as_its_policy(name, tmp_path):
    """What has no effect, or is copied for nothing, is in no policy; that is asked of operators of one card."""
    config, edits = CONFIGS[name]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(edited(yaml.safe_load(config.read_text()), edits)))
    model = capture_apart(tmp_path / "config.yaml").with_swap()  # as other layers do, if this one does not
    rows = LayerAssignments(model, build_catalog(model))
    stage_problem = PipelineProblem(rows, model, 1 << 50, 1 << 50)
    can_swap = stage_problem.costs.freed_bytes[1, :, 0] > 0
    can_recompute = stage_problem.costs.freed_bytes[1, :, 1:].max(axis=1) > 0
    can_recompute[0] = False  # the full layer: there is nothing to swap then
    chance = np.random.default_rng(0)
    num_faulty = 0
    for _ in range(NUM_ROWS):
        drawn = chance.integers(3, size=len(can_swap))
        assignment = np.zeros((stage_problem.costs.num_layers, len(can_swap)), np.int64)
        distance = chance.choice(DISTANCES, size=len(can_swap))
        assignment[1] = np.where(can_swap & (drawn == 1), distance, np.where(can_recompute & (drawn == 2), -1, KEEP))
        found, expected = stage_problem.timeline(assignment), model.simulate(rows.policy(assignment)).timeline
        assert found.step_time_ns == expected.step_time_ns
        assert found.program.copies.size_bytes.tolist() == expected.program.copies.size_bytes.tolist()
        copies = [tensor.num_copies for tensor in stage_problem.blocks(assignment)[2].tensors]
        assert ONE_WAY not in copies
        assert name != "casts" or is_fully_effective(model, rows.policy(assignment))
        num_faulty += rows.ineffective_names(1, assignment[1]) != NO_INEFFECTIVE_NAMES
    assert num_faulty > 0 or name != "casts"
