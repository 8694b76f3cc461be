"""Policies as one writes them in Python."""

import pytest

import mindswap
from mindswap import Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.errors import MindswapError, PolicyError
from mindswap.policy.formats.mindformers1.schema import RECOMPUTE_FLAGS
from mindswap.policy.model import ALL_LAYERS, DEFAULT_SWAP_PATTERNS, NO_LAYERS


def test_layers_are_a_set_of_indices():
    assert Layers(3, 0, 3) == Layers((0, 3)) == Layers([3, 0]) == Layers({0, 3})
    assert Layers(range(3)).indices == (0, 1, 2)
    assert (Layers(), Layers(None)) == (NO_LAYERS, ALL_LAYERS)
    assert repr(Layers(3, 0)) == "Layers(0, 3)"
    assert hash(Layers(0)) == hash(Layers((0,)))


@pytest.mark.parametrize("wrong", [(-1,), (True,), ("0-3",), (1.0,), ([0, None],), (None, 1)])
def test_what_is_no_layer_is_refused(wrong):
    with pytest.raises(MindswapError, match=r"is not a layer index\n    allowed: indices from 0"):
        Layers(*wrong)


def test_entries_may_be_a_list():
    """Where layers or operators are named, and only there, swap is on without saying so."""
    policy = Policy(op_swap=[OpSwap("attention", layers=Layers(0, 3), prefetch=20)])
    assert policy == Policy(True, op_swap=(OpSwap("attention", Layers((0, 3)), 20),))
    assert Policy(layer_recompute=Layers(1)).is_swap_enabled
    assert Policy(select_recompute=[OpRecompute("mlp", Layers(1))]).is_swap_enabled
    assert not Policy().is_swap_enabled
    assert not Policy(False, op_swap=[OpSwap("attention", Layers(0), 20)]).is_swap_enabled


@pytest.mark.parametrize(
    "make",
    [
        lambda: OpSwap("attention", [0, 3], 20),
        lambda: OpRecompute("attention", True),
        lambda: LayerSwap(0, 20),
        lambda: Policy(layer_recompute=[0]),
    ],
)
def test_layers_in_another_form_are_refused(make):
    with pytest.raises(MindswapError, match=r"is not a set of layers\n    fix:     layers=Layers\(0, 3\)"):
        make()


@pytest.mark.parametrize("prefetch", [0, -1, True, 1.5, "20"])
def test_a_wrong_distance_is_refused(prefetch):
    with pytest.raises(MindswapError, match="allowed: a number of operators from 1"):
        OpSwap("attention", Layers(0), prefetch)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OpSwap(None, Layers(0), 1), "pattern=None names no operator"),
        (lambda: OpRecompute(b"a", Layers(0)), "pattern=b'a' names no operator"),
        (lambda: Policy(op_swap=5), r"op_swap: 5 is not a list of entries\n    fix:     op_swap=\[OpSwap\(...\)\]"),
        (lambda: Policy(op_swap="attention"), "op_swap: 'attention' is not a list of entries"),
        (lambda: Policy(op_swap=OpSwap("a", Layers(0), 1)), "op_swap: OpSwap.* is not a list of entries"),
        (lambda: Policy(op_swap=[LayerSwap(Layers(0), 1)]), "op_swap: LayerSwap.* is not a list of entries"),
        (lambda: Policy(layer_swap=None), "layer_swap: None is not a list of entries"),
        (lambda: Policy(select_recompute=["attention"]), r"select_recompute=\[OpRecompute\(...\)\]"),
        (lambda: Policy(default_prefetch=0), "default_prefetch=0 is not a distance"),
        (lambda: Policy("on"), "is_swap_enabled='on'\n    allowed: True or False"),
        (lambda: Policy(mp_comm_recompute=1), "mp_comm_recompute=1\n    allowed: True or False"),
        (lambda: mindswap.load_policy(None), "None is not a file name"),
        (lambda: mindswap.load_policy(5), "5 is not a file name"),
    ],
)
def test_what_is_no_policy_is_refused(make, message):
    with pytest.raises(MindswapError, match=message):
        make()


def test_the_default_strategy_needs_no_patterns():
    read = mindswap.load_policy({"swap_config": {"swap": True, "default_prefetch": 7}})
    assert Policy(default_prefetch=7) == read
    assert [(entry.pattern, entry.prefetch) for entry in read.op_swap] == [(name, 7) for name in DEFAULT_SWAP_PATTERNS]


def test_a_configuration_as_data_and_as_a_file_are_the_same(tmp_path):
    data = {"swap_config": {"swap": True, "layer_swap": [{"layers": [0, 3], "backward_prefetch": 20}]}}
    (tmp_path / "x.yaml").write_text(
        "swap_config: {swap: True, layer_swap: [{layers: [0, 3], backward_prefetch: 20}]}", "utf-8"
    )
    expected = Policy(layer_swap=[LayerSwap(Layers(0, 3), 20)])
    assert mindswap.load_policy(data) == expected
    assert mindswap.load_policy(tmp_path / "x.yaml") == expected


def test_a_wrong_configuration_is_refused_with_every_problem():
    with pytest.raises(PolicyError) as error:
        mindswap.load_policy({"swap_config": {"swap": True, "layer_swap": [{"layers": [0], "backward_prefetch": 0}]}})
    assert [problem.rule for problem in error.value.problems] == ["bad-prefetch"]


def test_flags_that_are_not_written_are_as_in_a_policy_without_them():
    assert {flag: getattr(Policy(True), flag) for flag in RECOMPUTE_FLAGS} == RECOMPUTE_FLAGS
