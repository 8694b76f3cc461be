"""What a search simulates of a row is what its policy comes to, on a Qwen3 that was really captured."""

import numpy as np
import pytest
import yaml

from mindswap.planner.catalog import collect_items
from mindswap.planner.effect import NO_FAULTS, is_foreseen_as_asked
from mindswap.planner.rows import Rows
from mindswap.planner.space import KEEP
from mindswap.planner.step_space import WholeSpace
from mindswap.simulator.program import ONE_WAY
from tests.adapters.edits import edited
from tests.adapters.graphs import QWEN3
from tests.planner.loading import capture_apart

pytestmark = pytest.mark.mindspore

DISTANCE = 8  # of about 60 operators that a layer has in forward
NUM_ROWS = 60
EDITS = {
    "model.model_config.num_hidden_layers": 2,
    "model.model_config.compute_dtype": "bfloat16",
    "model.model_config.fp32_residual_connection": True,
}


def test_a_row_is_simulated_as_its_policy(tmp_path):
    """With casts several tensors have one name, of which the compiler may move some, or one that never comes back.

    What has no effect, or is copied for nothing, is in no policy.
    """
    config = edited(yaml.safe_load(QWEN3.read_text()), EDITS)
    (tmp_path / "casts.yaml").write_text(yaml.safe_dump(config))
    model = capture_apart(tmp_path / "casts.yaml")
    rows = Rows(model, collect_items(model))
    space = WholeSpace(rows, model, 1 << 50, 1 << 50)
    can_swap = space.figures.freed_bytes[1, :, 0] > 0
    can_recompute = space.figures.freed_bytes[1, :, 1:].max(axis=1) > 0
    can_recompute[0] = False  # the whole layer: there is nothing to swap then
    chance = np.random.default_rng(0)
    num_faulty = 0
    for _ in range(NUM_ROWS):
        drawn = chance.integers(3, size=len(can_swap))
        choice = np.zeros((space.figures.num_layers, len(can_swap)), np.int64)
        choice[1] = np.where(can_swap & (drawn == 1), DISTANCE, np.where(can_recompute & (drawn == 2), -1, KEEP))
        found, expected = space.timeline(choice), model.simulate(rows.policy(choice)).timeline
        assert found.step_time_ns == expected.step_time_ns
        assert found.program.copies.size_bytes.tolist() == expected.program.copies.size_bytes.tolist()
        copies = [tensor.num_copies for tensor in space.blocks(choice)[2].tensors]
        assert ONE_WAY not in copies
        assert is_foreseen_as_asked(model, rows.policy(choice))
        num_faulty += rows.faults(1, choice[1]) != NO_FAULTS
    assert num_faulty > 0
