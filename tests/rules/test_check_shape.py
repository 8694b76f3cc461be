import pytest
import yaml

from mindswap.config.render import document_from_data
from mindswap.policy.model import (
    ALL_LAYERS,
    DEFAULT_SWAP_PATTERNS,
    NO_LAYERS,
    Layers,
    LayerSwap,
    OpRecompute,
    OpSwap,
    Policy,
)
from mindswap.rules.checker import check_shape
from tests.builders import document

DEFAULT_10 = Policy(True, 10, op_swap=tuple(OpSwap(pattern, ALL_LAYERS, 10) for pattern in DEFAULT_SWAP_PATTERNS))


def policy_of(data):
    result = check_shape(document_from_data(data, "data"))
    assert result.problems == ()
    return result.policy


def swap_of(**options):
    return policy_of({"swap_config": {"swap": True, **options}})


def recompute_of(use_legacy=True, **options):
    return policy_of({"use_legacy": use_legacy, "swap_config": {"swap": True}, "recompute_config": options})


def entry(**keys):
    return {"backward_prefetch": 5, **keys}


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"swap_config": None},
        {"swap_config": {}},
        {"swap_config": {"swap": False}},
        {"swap_config": {"default_prefetch": 1, "layer_swap": None, "op_swap": None}},
        {"swap_config": {"swap": False}, "recompute_config": {"recompute": [[1, 2], [3, 4]], "select_recompute": 5}},
    ],
)
def test_swap_off_is_the_empty_policy(data):
    assert policy_of(data) == Policy()


@pytest.mark.parametrize(
    "options",
    [
        {"default_prefetch": 10},
        {"default_prefetch": 10, "layer_swap": None},
        {"default_prefetch": 10, "layer_swap": None, "op_swap": None},
        # What TransformerSwapConfig(default_prefetch=10, swap=True).to_dict() gives.
        {
            "default_prefetch": 10,
            "layer_swap": [],
            "op_swap": {r".*\.flash_attention": [{"backward_prefetch": 10, "layers": True}]},
        },
    ],
)
def test_the_default_strategy(options):
    assert swap_of(**options) == DEFAULT_10


def test_the_default_prefetch_is_one():
    assert swap_of().default_prefetch == 1
    assert {swap.prefetch for swap in swap_of().op_swap} == {1}


@pytest.mark.parametrize(
    "layers",
    [
        [0, 1, 2],
        (0, 1, 2),
        [2, 1, 0],
        range(3),
        "0-2",
        " 0 - 2 ",
        ["0-2"],
        ["0-1", 2],
        (0, "1-2"),
    ],
)
def test_spellings_of_layers(layers):
    assert swap_of(layer_swap=[entry(layers=layers)]).layer_swap == (LayerSwap(Layers((0, 1, 2)), 5),)
    assert recompute_of(recompute=layers).layer_recompute == Layers((0, 1, 2))
    assert recompute_of(select_recompute={"add": layers}).select_recompute == (OpRecompute("add", Layers((0, 1, 2))),)


def test_true_is_every_layer():
    assert swap_of(layer_swap=[entry(layers=True)]).layer_swap == (LayerSwap(ALL_LAYERS, 5),)


@pytest.mark.parametrize(
    "op_swap",
    [
        [entry(op_name="add", layers=[0, 1])],
        (entry(op_name="add", layers=[0, 1]),),
        entry(op_name="add", layers=[0, 1]),
        [entry(op_name=["add"], layers=[0, 1])],
        [entry(op_name=("add",), layers=[0, 1])],
        [entry(op_name="add", layers=[0]), entry(op_name="add", layers=[1])],
        {"add": [entry(layers=[0, 1])]},
        {"add": (entry(layers=[0, 1]),)},
        {"add": entry(layers=[0, 1])},
        {"add": [entry(layers=[0]), entry(layers=[1])]},
    ],
)
@pytest.mark.parametrize("layer_swap", [None, [], {}])
def test_spellings_of_op_swap(op_swap, layer_swap):
    policy = swap_of(op_swap=op_swap, layer_swap=layer_swap)
    assert policy == Policy(True, op_swap=(OpSwap("add", Layers((0, 1)), 5),))


@pytest.mark.parametrize("layer_swap", [[entry(layers=[0])], (entry(layers=[0]),), entry(layers=[0])])
@pytest.mark.parametrize("op_swap", [None, [], {}])
def test_spellings_of_layer_swap(layer_swap, op_swap):
    assert swap_of(layer_swap=layer_swap, op_swap=op_swap) == Policy(True, layer_swap=(LayerSwap(Layers((0,)), 5),))


def test_a_list_of_operators_is_one_entry_each():
    policy = swap_of(op_swap=[entry(op_name=["add", "mul"], layers=True)])
    assert policy.op_swap == (OpSwap("add", ALL_LAYERS, 5), OpSwap("mul", ALL_LAYERS, 5))


def test_patterns_keep_the_order_of_their_first_appearance():
    entries = [entry(op_name="b", layers=[0]), entry(op_name="a", layers=[0]), entry(op_name="b", layers=[1])]
    entries[2]["backward_prefetch"] = 7
    policy = swap_of(op_swap=entries)
    assert policy.op_swap == (OpSwap("b", Layers((0,)), 5), OpSwap("b", Layers((1,)), 7), OpSwap("a", Layers((0,)), 5))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, ALL_LAYERS),
        (False, NO_LAYERS),
        ([], NO_LAYERS),
        ([0, 3], Layers((0, 3))),
    ],
)
def test_recompute(value, expected):
    assert recompute_of(recompute=value).layer_recompute == expected


FEED_FORWARD = (r"feed_forward\.mul", r"feed_forward\.w1\.activation\.silu")
MLP = (
    r"mlp\.shared_experts\.mul",
    r"mlp\.shared_experts\.activation_func\.silu",
    r"mlp\.mul",
    r"mlp\.activation_func\.silu",
)


@pytest.mark.parametrize("option", ["select_recompute", "select_recompute_exclude"])
@pytest.mark.parametrize(("use_legacy", "names"), [(True, FEED_FORWARD), (False, MLP)])
def test_default_operators(option, use_legacy, names):
    every = getattr(recompute_of(use_legacy, **{option: True}), option)
    assert every == tuple(OpRecompute(name, ALL_LAYERS) for name in names)
    some = getattr(recompute_of(use_legacy, **{option: [0, 3]}), option)
    assert some == tuple(OpRecompute(name, Layers((0, 3))) for name in names)


@pytest.mark.parametrize("option", ["select_comm_recompute", "select_comm_recompute_exclude"])
def test_default_communication_operators(option):
    assert getattr(recompute_of(**{option: True}), option) == (OpRecompute(r".*\.norm", ALL_LAYERS),)
    assert getattr(recompute_of(**{option: "0-1"}), option) == (OpRecompute(r".*\.norm", Layers((0, 1))),)


@pytest.mark.parametrize(
    "option",
    ["select_recompute", "select_comm_recompute", "select_recompute_exclude", "select_comm_recompute_exclude"],
)
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (False, ()),
        ([], ()),
        ({}, ()),
        ({"a": False}, ()),
        ({"a": []}, ()),
        ({"a": True}, (OpRecompute("a", ALL_LAYERS),)),
        ({"a": [1, 0]}, (OpRecompute("a", Layers((0, 1))),)),
        ({"a": True, "b": "0-1"}, (OpRecompute("a", ALL_LAYERS), OpRecompute("b", Layers((0, 1))))),
        (["a", "b"], (OpRecompute("a", ALL_LAYERS), OpRecompute("b", ALL_LAYERS))),
        (("a",), (OpRecompute("a", ALL_LAYERS),)),
    ],
)
def test_spellings_of_the_select_options(option, value, expected):
    assert getattr(recompute_of(**{option: value}), option) == expected


def test_flags_and_their_defaults():
    policy = recompute_of()
    flags = (policy.recompute_slice_activation, policy.mp_comm_recompute, policy.parallel_optimizer_comm_recompute)
    assert flags == (False, True, False)
    policy = recompute_of(
        recompute_slice_activation=True, mp_comm_recompute=False, parallel_optimizer_comm_recompute=True
    )
    flags = (policy.recompute_slice_activation, policy.mp_comm_recompute, policy.parallel_optimizer_comm_recompute)
    assert flags == (True, False, True)


POLICIES = [
    Policy(),
    Policy(True),
    DEFAULT_10,
    Policy(True, layer_swap=(LayerSwap(Layers((0, 3)), 20), LayerSwap(Layers((1,)), 10))),
    Policy(True, op_swap=(OpSwap("a", Layers((0,)), 20), OpSwap("a", Layers((1,)), 10), OpSwap("b", ALL_LAYERS, 1))),
    Policy(
        True,
        None,
        (LayerSwap(ALL_LAYERS, 2),),
        (OpSwap(r"a\..*", ALL_LAYERS, 1),),
        Layers((0,)),
        (OpRecompute("a", Layers((0,))),),
        (OpRecompute("b", ALL_LAYERS),),
        (OpRecompute("c", Layers((0, 2))),),
        (OpRecompute("d", Layers((0, 1))),),
        True,
        False,
        True,
    ),
]


@pytest.mark.parametrize("policy", POLICIES)
def test_normalising_twice_changes_nothing(policy):
    assert policy_of(policy.to_config()) == policy
    written = yaml.safe_dump(policy.to_config(), sort_keys=False)
    assert check_shape(document(written)).policy == policy


def test_a_part_that_cannot_be_read_leaves_no_policy():
    result = check_shape(document("swap_config: {swap: True, layer_swap: 3}"))
    assert result.policy is None
    assert [p.rule for p in result.problems] == ["wrong-type"]


@pytest.mark.parametrize("key", ["num_layers", "num_hidden_layers", "n_layer", "n_layers"])
def test_names_of_the_number_of_layers(key):
    text = f"model: {{model_config: {{{key}: 12}}}}"
    assert check_shape(document(text)).num_layers == 12
    assert check_shape(document(text), num_layers=3).num_layers == 3


@pytest.mark.parametrize("value", ["0", "-1", "True", "'4'", "4.0", "null", "99999999"])
def test_a_number_of_layers_that_is_none(value):
    assert check_shape(document(f"model: {{model_config: {{num_layers: {value}}}}}")).num_layers is None
