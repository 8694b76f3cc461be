"""Nothing is swapped in a pipeline of so many micro-batches that MindSpore does not inline its layers."""

from types import SimpleNamespace

import pytest

from mindswap.config.parse import parse_document
from mindswap.config.step_settings import LAYERS_NOT_INLINED, read_step_settings
from mindswap.errors import PlanError
from mindswap.features.plan import restrict_to_compilable
from mindswap.planner.problem import DEFAULT_ALLOW, Allow


def step(num_stages: int, num_micro_batches: int) -> SimpleNamespace:
    text = f"parallel_config: {{pipeline_stage: {num_stages}, micro_batch_num: {num_micro_batches}}}\n"
    if num_stages == 1:
        text = f"runner_config: {{gradient_accumulation_steps: {num_micro_batches}}}\n"
    document = parse_document(text.encode(), "x.yaml")
    return SimpleNamespace(document=document, model=SimpleNamespace(settings=read_step_settings(document)))


@pytest.mark.parametrize(
    ("num_stages", "num_micro_batches", "swaps"), [(4, 64, True), (4, 65, False), (4, 128, False), (1, 128, True)]
)
def test_of_more_than_64_nothing_is_swapped(num_stages, num_micro_batches, swaps):
    found = restrict_to_compilable(step(num_stages, num_micro_batches), DEFAULT_ALLOW)
    assert (found.swap, found.recompute) == (swaps, True)


def test_swap_alone_is_refused_with_what_would_do():
    with pytest.raises(PlanError) as error:
        restrict_to_compilable(step(4, 128), Allow(recompute=False))
    assert LAYERS_NOT_INLINED in str(error.value) and "micro_batch_num up to 64" in str(error.value)
    assert restrict_to_compilable(step(4, 128), Allow(swap=False)) == Allow(swap=False)
