"""A step as it is compiled with and without swap: `load_step(...).model` is the one that `simulate` takes."""

from pathlib import Path

import pytest
import yaml

from mindswap.config.render import document_from_data
from mindswap.features.step import load_step
from tests.compiled_steps import captured

CONFIG = Path(__file__).resolve().parents[3] / "benchmarks" / "models" / "qwen2_0_5b.yaml"
# Changes of a step of one micro-batch on one stage with the parallel optimizer.
CHANGES = {
    "parallel optimizer": {},
    "unsharded": {"parallel": {"enable_parallel_optimizer": False}},
    "data parallel": {"parallel": {"parallel_mode": 0, "enable_parallel_optimizer": False}},
    "interleaved": {"micro_batch_interleave_num": 2},
    "accumulated": {"runner_config": {"gradient_accumulation_steps": 2}},
    "two stages": {"parallel_config": {"pipeline_stage": 2, "micro_batch_num": 1}},
}
SINGLE = ("parallel optimizer", "unsharded", "data parallel")


@pytest.mark.parametrize("has_swap", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_loaded_step_is_compiled_as_its_configuration_says(name, has_swap):
    """Lazy_inline is off with one micro-batch on one stage and no swap; swap changes nothing of other steps."""
    data = yaml.safe_load(CONFIG.read_text("utf-8"))
    for key, value in {**CHANGES[name], "swap_config": {"swap": has_swap}}.items():
        data[key] = {**data.get(key, {}), **value} if isinstance(value, dict) else value
    step = load_step(document_from_data(data, "changed.yaml"), captured=captured("planned/qwen2_0_5b"))
    assert step.model.settings.lacks_lazy_inline is (name in SINGLE and not has_swap)
    with_swap, without_swap = step.as_compiled_with_swap(), step.as_compiled_without_swap()
    assert (with_swap if has_swap else without_swap) is step
    assert not with_swap.model.settings.lacks_lazy_inline
    assert without_swap.model.settings.lacks_lazy_inline is (name in SINGLE)
    assert with_swap.model.settings.sharding.is_cast_after_gather is (name in SINGLE)
