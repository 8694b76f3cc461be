"""Order of the loss of a model and the loss of its layer for multi-token prediction."""

from mindswap.graph.passes.gather import GATHER_MARK
from mindswap.graph.passes.loss_order import advance_difference, order_labels, order_losses
from tests.graph.builders import graph, node
from tests.simulator.steps import placed

AFTER = {"max", "mtp_max"}  # with an AllReduce of their result


def step(is_gathered: bool = True, has_prediction: bool = True):
    """Two losses, one after the other: logits, maximum over ranks, shifted logits, less the labels in backward."""
    mark = {GATHER_MARK: True} if is_gathered else {}

    def loss(prefix: str, source: str) -> list:
        cell = "model.loss" if not prefix else "model.mtp.loss"
        return [
            placed(f"{prefix}logits", "MatMul", f"{source} weight", None, cell),
            placed(f"{prefix}labels", "OneHotExt", "ids", None, cell),
            placed(f"{prefix}max", "ArgMaxWithValue", f"{prefix}logits", None, cell),
            placed(f"{prefix}shifted", "SubExt", f"{prefix}logits {prefix}max", None, cell),
        ]

    prediction = [placed("mtp", "Mul", "hidden", None, "model.mtp.layers.0"), *loss("mtp_", "mtp")]
    forward = [
        placed("hidden", "Add", "a b", 0, "mlp"),
        node("weight", "AllGather", "part", layer=None, **mark),
        *loss("", "hidden"),
        *(prediction if has_prediction else []),
    ]
    backward = [
        node("cast", "Cast", "labels_b kind", layer=None),
        node("exp", "Exp", "shifted_b", layer=None),
        node("difference", "Sub", "exp cast", layer=None),
        node("scaled", "Mul", "difference dout", layer=None),
    ]
    return graph(forward, backward, saved="labels shifted", kind=1)


def test_both_losses_take_turns_at_each_collective():
    """The first one is the AllGather of the weight, for which labels do not wait."""
    ordered = order_losses(step(), set(), AFTER)
    assert " ".join(each.name for each in ordered.forward) == (
        "hidden0 mtp weight labels mtp_labels cast logits max mtp_logits mtp_max shifted mtp_shifted exp difference"
    )


def test_what_needs_no_gradient_runs_with_the_loss():
    """Backward reads the difference under its own name; only `scaled` needs the gradient `dout`."""
    before = step()
    ordered = order_losses(before, set(), AFTER)
    assert [each.name for each in ordered.backward] == ["scaled"]
    assert ordered.index.forward_names["difference"] == "difference"
    moved = {each.name: each.inputs for each in ordered.forward}
    assert (moved["cast"], moved["exp"]) == (("labels", "kind"), ("shifted",))
    assert sorted(moved) == sorted(each.name for each in (*before.forward, *before.backward[:3]))


def test_a_collective_before_an_operator_counts_for_it():
    """As a gather of hidden states before the product of the second head only: the first one is a collective ahead."""
    ordered = order_losses(step(), {"mtp_logits"}, AFTER)
    assert " ".join(each.name for each in ordered.forward) == (
        "hidden0 mtp weight labels mtp_labels cast logits max shifted mtp_logits mtp_max exp difference mtp_shifted"
    )


def test_nothing_changes_without_a_gathered_weight_or_without_prediction():
    for before in (step(is_gathered=False), step(has_prediction=False)):
        assert order_losses(before, set(), AFTER) is before


def names(nodes):
    return " ".join(each.name for each in nodes)


def one_loss():
    """Logits, their maximum over ranks, shifted logits; labels, of which backward reads a cast."""
    loss = {"cell_path": "model.loss", "layer": None}
    forward = [
        placed("hidden", "Add", "a b", 0, "mlp"),
        node("logits", "MatMul", "hidden0 weight", **loss),
        node("max", "ArgMaxWithValue", "logits", **loss),
        node("shifted", "SubExt", "logits max", **loss),
        node("gathered", "AllGather", "mask", **loss),
        node("masked", "Mul", "gathered", **loss),
        node("labels", "OneHotExt", "ids", **loss),
        node("product", "Mul", "shifted labels", **loss),
    ]
    backward = [node("cast", "Cast", "labels_b kind", layer=None), node("scaled", "Mul", "cast dout", layer=None)]
    return graph(forward, backward, saved="labels", kind=1)


def test_labels_run_while_the_maximum_is_reduced():
    """What reads an AllGather of the mask waits for it; a cast for backward is with the labels, as a single kernel."""
    ordered = order_labels(one_loss(), {"max"}, has_early_gradients=True)
    assert names(ordered.forward) == "hidden0 logits max labels cast shifted gathered masked product"
    assert names(ordered.backward) == "scaled" and ordered.index.forward_names["cast"] == "cast"
    ordered = order_labels(one_loss(), {"max"}, has_early_gradients=False)
    assert names(ordered.forward) == "hidden0 logits max labels shifted gathered masked product"
    assert names(ordered.backward) == "cast scaled"


def test_labels_stay_where_no_loss_is_reduced_or_there_are_two():
    before = one_loss()
    assert order_labels(before, {"hidden0", "gathered"}, True) is before
    both = step()
    assert order_labels(both, AFTER, True) is both


def direct_loss(weight):
    """Logits, their exponentials and labels, whose difference backward scales; the head's gradient reads `weight`."""
    loss = {"cell_path": "model.loss", "layer": None}
    forward = [
        placed("hidden", "Add", "a b", 0, "mlp"),
        node("weight", "Load", "parameter", layer=None),
        node("cast_weight", "Cast", "weight kind", layer=None),
        node("logits", "MatMul", "hidden0 weight", **loss),
        node("labels", "OneHotExt", "ids", **loss),
        node("product", "Mul", "logits labels", **loss),
        node("sum", "SumExt", "product", **loss),
    ]
    backward = [
        node("exp", "Exp", "logits_b", layer=None),
        node("difference", "Sub", "exp labels_b", layer=None),
        node("scaled", "Mul", "difference dout", layer=None),
        node("to_hidden", "MatMul", f"scaled {weight}_b", layer=None),
    ]
    return graph(forward, backward, saved=f"logits labels {weight}", kind=1)


def test_the_difference_is_before_the_loss_if_the_gradient_of_the_head_reads_the_weight_itself():
    """Dry runs of MindSpore 2.9.0 (docs/internals/notes.md#difference-before-the-loss)."""
    ordered = advance_difference(direct_loss("weight"))
    assert names(ordered.forward) == "hidden0 weight cast_weight logits labels exp difference product sum"
    assert names(ordered.backward) == "scaled to_hidden"
    assert ordered.index.forward_names["difference"] == "difference"
    before = direct_loss("cast_weight")
    assert advance_difference(before) is before
