"""Which layer of one compiled network is like one of another; the rest is in tests/features, where networks compile."""

from types import SimpleNamespace

import pytest

from mindswap.errors import GraphError
from mindswap.graph.analysis.liveness import LayerSample
from mindswap.policy.cell_tree import CellNode
from mindswap.steps.compiled import match_layers, read_skew

DENSE, EXPERTS = CellNode("", "Dense"), CellNode("", "Experts")


def compiled(indices, layer_map, layers):
    return SimpleNamespace(sample=LayerSample(indices, layer_map), layers=layers)


def test_a_layer_that_is_left_out_is_like_the_one_that_stands_for_it():
    """A stage has layers 8 to 12; under the policy 10 is unlike its neighbours, without it 9, 10 and 11 are alike."""
    judged = compiled((8, 9, 10, 11, 12), (0, 1, 2, 3, 4), (DENSE,) * 5)
    plain = compiled((8, 9, 12), (0, 1, 1, 1, 2), (DENSE,) * 3)
    assert match_layers(judged, plain, range(8, 13)) == {0: 0, 1: 1, 2: 1, 3: 1, 4: 2}
    assert match_layers(plain, judged, range(8, 13)) == {0: 0, 1: 1, 2: 4}


def test_layers_of_another_kind_are_no_likes():
    """Three dense layers, then two with experts; the model makes the first three dense, also where four are built."""
    judged = compiled((0, 1, 2, 3, 4), (0, 1, 2, 3, 4), (DENSE,) * 3 + (EXPERTS,) * 2)
    four_layers = compiled((0, 1, 3, 4), (0, 1, 1, 2, 3), (DENSE, DENSE, DENSE, EXPERTS))
    assert match_layers(judged, four_layers, range(5)) is None
    assert match_layers(judged, judged, range(5)) == {0: 0, 1: 1, 2: 2, 3: 3, 4: 4}


# How uneven tokens go to experts, as the command line says it.


def test_a_skew_in_thousandths():
    assert [read_skew(text) for text in (None, "1", "1.5")] == [1000, 1000, 1500]


@pytest.mark.parametrize("text", ["0.9", "two", "nan", "inf", "-1", "2000"])
def test_what_is_no_skew_is_refused_with_what_is_allowed(text):
    with pytest.raises(GraphError, match="allowed: a number from 1"):
        read_skew(text)
