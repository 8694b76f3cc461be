import pytest

from mindswap.policy.model import Layers, LayerSwap
from tests.builders import check, found


@pytest.mark.parametrize("layers", ["[]", "False"])
def test_an_entry_without_layers_is_a_warning(layers):
    text = f"""
        swap_config:
          swap: True
          layer_swap:
            - {{backward_prefetch: 2, layers: [0]}}
            - {{backward_prefetch: 3, layers: {layers}}}
    """
    result = check(text)
    assert [(p.location.line, p.location.column, p.rule) for p in result.problems] == [(5, 7, "no-layers")]
    assert result.policy.layer_swap == (LayerSwap(Layers((0,)), 2),)


def test_layers_that_could_not_be_read_are_another_matter():
    text = "swap_config: {swap: True, layer_swap: [{backward_prefetch: 2, layers: x}, {backward_prefetch: 3}]}"
    assert found(text) == [(1, 71, "wrong-type"), (1, 75, "missing-key")]
