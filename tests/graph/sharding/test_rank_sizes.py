"""Sizes per rank from strategies, operator kind by operator kind, worked out by hand."""

from dataclasses import replace

from mindswap.graph.passes.gather import tensor_parallel_parts
from mindswap.graph.sharding.pipeline_stage import drop_head
from mindswap.graph.sharding.rank_sizes import ARRIVAL_SUFFIX, _inserted_node, shard_graph
from mindswap.graph.sharding.split_table import Redistribution, name_communication
from mindswap.graph.sharding.splits import LOCAL_MARK
from tests.graph.cut_graphs import graph, op, shapes


def test_without_a_cut_the_graph_is_the_same():
    step = graph(op("mul", "Mul", "x y", (2, 8), in_strategy=((1, 1), (1, 1))))
    sharding = shard_graph(step)
    assert sharding.graph is step
    assert (sharding.unresolved, sharding.redistributions) == ((), ())


def test_a_weight_is_cut_as_its_reader_asks():
    step = graph(
        op("load", "Load", "weight u", (16, 8)),
        op("cast", "Cast", "load half", (16, 8)),
        op("out", "MatMul", "x cast no yes", (4, 16), in_strategy=((1, 1), (8, 1))),
        types={"x": (4, 8)},
        no=0,
        yes=1,
    )
    sharded = shard_graph(step)
    assert shapes(sharded) == {"load": (2, 8), "cast": (2, 8), "out": (4, 2)}
    assert tensor_parallel_parts(sharded.graph.forward[0]) == 8
    assert tensor_parallel_parts(sharded.graph.forward[1]) is None  # said where it is read


def test_out_strategy_is_the_cut_of_the_output():
    step = graph(
        op("out", "MatMul", "x w no yes", (4, 8), in_strategy=((1, 2), (1, 2)), out_strategy=((2, 1),)),
        types={"x": (4, 16), "w": (8, 16)},
        no=0,
        yes=1,
    )
    assert shapes(shard_graph(step)) == {"out": (2, 8)}


def test_a_layout_counts_axes_from_the_right():
    layout = {"device_matrix": (2, 4, 8), "tensor_map": (2, (1, 0), -1), "alias_name": ("dp", "cp", "mp")}
    step = graph(op("neg", "Neg", "x", (2, 32, 4), in_layout=(layout,)), types={"x": (2, 32, 4)})
    assert shapes(shard_graph(step)) == {"neg": (1, 1, 4)}  # 2 by dp, 32 by cp x mp


def test_a_reshape_takes_the_cut_of_its_reader_and_gathers():
    # Sequence parallel: the norm is cut along the sequence, the product after it needs all of it.
    step = graph(
        op("norm", "Neg", "x", (1, 8, 4), in_strategy=((1, 8, 1),)),
        op("view", "Reshape", "norm", (8, 4)),
        op("out", "MatMul", "view w no yes", (8, 16), in_strategy=((1, 1), (8, 1))),
        types={"x": (1, 8, 4), "w": (16, 4)},
        no=0,
        yes=1,
    )
    sharding = shard_graph(step)
    assert shapes(sharding) == {"norm": (1, 1, 4), "view": (8, 4), "out": (8, 2)}
    assert sharding.redistributions == (Redistribution("norm", step.forward[1], (1, 8, 1), (1, 1)),)
    assert sharding.graph.forward[1].op == "AllGather"  # memory of its own, no view of the norm


def test_a_gather_runs_again_if_the_reshape_asks_for_it_and_not_the_norm_before():
    # Witnesses: `llama tp2 sp`, `select_comm` (1358 MiB each) and `comm_reshape` (1294) of benchmarks/dryrun.
    def found(norm, view):
        step = graph(
            op("norm", "Neg", "x", (1, 8, 4), in_strategy=((1, 8, 1),), recompute_comm_op=norm),
            op("view", "Reshape", "norm", (8, 4), recompute_comm_op=view),
            op("out", "Neg", "view", (8, 4), in_strategy=((1, 1),)),
            types={"x": (1, 8, 4)},
        )
        return shard_graph(step).graph.forward[1].op

    assert [found(True, False), found(False, True)] == ["AllGather", "Reshape"]


def test_members_of_a_tuple_are_cut_as_they_were():
    """`none` asks for a third of two, and `nested` has three members in two outputs: nothing is known of them."""
    step = graph(
        op("first", "Neg", "x", (8, 4), in_strategy=((2, 1),)),
        op("second", "Neg", "x", (8, 4), in_strategy=((1, 4),)),
        op("tuple", "MakeTuple", "first second", (8, 4), (8, 4)),
        op("one", "TupleGetItem", "tuple number_1", (8, 4)),
        op("zero", "TupleGetItem", "tuple number_0", (8, 4)),
        op("unsaid", "TupleGetItem", "tuple input", (8, 4)),
        op("none", "TupleGetItem", "tuple number_2", (8, 4)),
        op("both", "TupleGetItem", "tuple number_0", (8, 4), (8, 4)),
        op("nested", "MakeTuple", "tuple first", (8, 4), (8, 4)),
        types={"x": (8, 4)},
        number_0=0,
        number_1=1,
        number_2=2,
    )
    sharded = shard_graph(step).graph.forward
    assert {made.name: [known.shape for known in made.outputs] for made in sharded[2:]} == {
        "tuple": [(4, 4), (8, 1)], "one": [(8, 1)], "zero": [(4, 4)], "unsaid": [(4, 4)], "none": [(8, 4)],
        "both": [(8, 4)] * 2, "nested": [(8, 4)] * 2,
    }  # fmt: skip


def test_what_stands_beside_an_operator_is_in_its_cell():
    assert _inserted_node(op("y", "Mul"), "Reshape", "new", "y", ()).scope == f"Default/Reshape{ARRIVAL_SUFFIX}"


def test_communication_that_gives_a_rank_another_part():
    found = [name_communication((4, 1), after) for after in ((2, 1), (1, 4), (4, 2))]
    assert found == ["AllGather", "AllToAll", "Slice"]


def test_a_reshape_that_is_no_regular_cut_is_whole_and_listed():
    """(2, 8, 4) cut over 4 in the middle is of no rows of (16, 4); what is whole stays so without a word."""
    step = graph(
        op("cut", "Neg", "x", (2, 8, 4), in_strategy=((1, 4, 1),)),
        op("rows", "Reshape", "cut", (16, 4)),
        op("whole", "Neg", "y", (3, 4), in_strategy=((1, 1),)),
        op("parts", "Reshape", "whole", (2, 6)),
        types={"x": (2, 8, 4), "y": (3, 4)},
    )
    sharding = shard_graph(step)
    assert shapes(sharding) == {"cut": (2, 2, 4), "rows": (16, 4), "whole": (3, 4), "parts": (2, 6)}
    assert [(each.node.name, each.reason) for each in sharding.unresolved] == [
        ("rows", "(1, 4, 1) of (2, 8, 4) is not a regular split of (16, 4)")
    ]


def test_what_has_no_rule_is_whole_and_listed():
    step = graph(
        op("neg", "Neg", "x", (8, 4), in_strategy=((8, 1),)),
        op("odd", "Mystery", "neg", (8, 4)),
        op("number", "Mystery", "neg", ()),
        types={"x": (8, 4)},
    )
    sharding = shard_graph(step)
    assert shapes(sharding) == {"neg": (1, 4), "odd": (8, 4), "number": ()}
    assert [entry.node.name for entry in sharding.unresolved] == ["odd"]


def test_an_operator_without_strategy_follows_its_operands_and_is_listed():
    step = graph(
        op("neg", "Neg", "x", (8, 4), in_strategy=((8, 1),)),
        op("exp", "Exp", "neg", (8, 4)),
        types={"x": (8, 4)},
    )
    sharding = shard_graph(step)
    assert shapes(sharding)["exp"] == (1, 4)
    assert sharding.unresolved[0].reason.startswith("has no strategy")
    for place, reason in (({"cell_path": "norm"}, "has no strategy"), ({"cell_path": ""}, "is in no cell")):
        outside = replace(step.forward[1], layer_index=None, **place)
        (found,) = shard_graph(replace(step, forward=(step.forward[0], outside))).unresolved
        assert found.reason.startswith(reason)


def test_a_product_of_backward_of_what_is_whole_is_whole():
    step = graph(
        op("neg", "Neg", "x", (8, 4), in_strategy=((8, 1),)),
        backward=[op("product", "MatMul", "a b no no", (4, 6))],
        types={"x": (8, 4), "a": (4, 8), "b": (8, 6)},
        no=0,
    )
    sharding = shard_graph(step)
    assert (shapes(sharding)["product"], sharding.unresolved) == ((4, 6), ())


def test_gradients_are_cut_as_what_they_are_gradients_of():
    # y = x w^T with w cut by rows: dx = dy w is whole, dw = dy^T x is cut as w.
    step = graph(
        op("x", "Neg", "input", (4, 8), in_strategy=((1, 1),)),
        op("w", "Load", "weight u", (16, 8)),
        op("y", "MatMul", "x w no yes", (4, 16), in_strategy=((1, 1), (8, 1))),
        op("loss", "Exp", "y", (4, 16), in_strategy=((1, 8),)),
        backward=[
            op("dy", "Neg", "loss_b", (4, 16)),
            op("dx", "MatMul", "dy w_b no no", (4, 8)),
            op("dw", "MatMul", "dy x_b yes no", (16, 8)),
        ],
        saved="x w loss",
        types={"input": (4, 8)},
        no=0,
        yes=1,
    )
    sharding = shard_graph(step)
    found = shapes(sharding)
    assert (found["dy"], found["dx"], found["dw"]) == ((4, 2), (4, 8), (2, 8))
    assert sharding.unresolved == ()


def test_gradients_of_swapped_operands_are_cut_as_without_swap():
    # The same with x and w on the host in between: forward reads them through a tie to the copy out, backward reads
    # the copies in. Both operands of the product have one shape, so only the way back tells which one is meant.
    step = graph(
        op("x", "Neg", "input", (16, 8), in_strategy=((1, 1),)),
        op("x_out", "MoveTo", "x CPU", (16, 8)),
        op("x_tied", "Depend", "x x_out", (16, 8)),
        op("w", "Load", "weight u", (16, 8)),
        op("w_out", "MoveTo", "w CPU", (16, 8)),
        op("w_tied", "Depend", "w w_out", (16, 8)),
        op("y", "MatMul", "x_tied w_tied no yes", (16, 16), in_strategy=((1, 1), (8, 1))),
        op("loss", "Exp", "y", (16, 16), in_strategy=((1, 8),)),
        backward=[
            op("dy", "Neg", "loss_b", (16, 16)),
            op("w_in", "MoveTo", "w_out_b Ascend", (16, 8)),
            op("dx", "MatMul", "dy w_in no no", (16, 8)),
            op("x_in", "MoveTo", "x_out_b Ascend", (16, 8)),
            op("dw", "MatMul", "dy x_in yes no", (16, 8)),
        ],
        saved="x_out w_out loss",
        types={"input": (16, 8)},
        no=0,
        yes=1,
    )
    sharding = shard_graph(step)
    found = shapes(sharding)
    assert (found["w_tied"], found["w_out"], found["w_in"], found["x_in"]) == ((2, 8), (2, 8), (2, 8), (16, 8))
    assert (found["dx"], found["dw"]) == ((16, 8), (2, 8))
    assert sharding.unresolved == ()


def test_gradients_of_recomputed_operands_are_cut_by_the_operator_that_the_compiler_names():
    # x is made again in backward; of the copy the compiler says only whose copy it is.
    step = graph(
        op("x", "Neg", "input", (16, 8), in_strategy=((1, 1),)),
        op("w", "Load", "weight u", (16, 8)),
        op("y", "MatMul", "x w no yes", (16, 16), in_strategy=((1, 1), (8, 1))),
        op("loss", "Exp", "y", (16, 16), in_strategy=((1, 8),)),
        backward=[
            op("x_again", "Neg", "input", (16, 8), origin="x", is_duplicate=True, in_strategy=((1, 1),)),
            op("dy", "Neg", "loss_b", (16, 16)),
            op("dw", "MatMul", "dy x_again yes no", (16, 8), origin="y"),
        ],
        saved="loss",
        types={"input": (16, 8)},
        no=0,
        yes=1,
    )
    sharding = shard_graph(step)
    assert shapes(sharding)["dw"] == (2, 8)
    assert sharding.unresolved == ()


def test_a_gradient_of_a_named_operator_needs_no_way_back():
    # Shapes of the operands differ, so which one it is the gradient of is clear: w, cut in 8.
    step = graph(
        op("x", "Neg", "input", (4, 8), in_strategy=((1, 1),)),
        op("y", "MatMul", "x w no yes", (4, 16), in_strategy=((1, 1), (8, 1))),
        backward=[
            op("lost", "Neg", "y_b", (4, 8)),
            op("dw", "MatMul", "y_b lost yes no", (16, 8), origin="y"),
        ],
        saved="y",
        types={"input": (4, 8), "w": (16, 8)},
        no=0,
        yes=1,
    )
    sharding = shard_graph(step)
    assert shapes(sharding)["dw"] == (2, 8)


def test_what_reads_a_table_is_no_gradient_of_the_look_up():
    # Of the shape of the ids, which are cut in 8; it is cut as the table that it reads, which is whole.
    step = graph(
        op("table", "Neg", "input", (16, 8), in_strategy=((1, 1),)),
        op("ids", "Neg", "numbers", (16, 8), in_strategy=((8, 1),)),
        op("rows", "Gather", "table ids first", (16, 8, 8), in_strategy=((1, 1), (8, 1))),
        backward=[op("scaled", "Mul", "table_b dy", (16, 8))],
        saved="table",
        types={"input": (16, 8), "numbers": (16, 8), "dy": (16, 8)},
        first=0,
    )
    assert shapes(shard_graph(step))["scaled"] == (16, 8)


def test_a_weight_that_all_groups_read_has_a_gradient_for_each_group():
    # 4 groups of 8 experts: groups over 4, experts over 2, columns over 2 ranks.
    step = graph(
        op("y", "BatchMatMul", "x w", (4, 8, 20, 16), in_strategy=((4, 2, 1, 1), (2, 2, 1)), transpose_b=True),
        backward=[op("dw", "BatchMatMul", "y_b x_b", (4, 8, 16, 32), origin="y")],
        saved="y",
        types={"x": (4, 8, 20, 32), "w": (8, 16, 32)},
    )
    found = shapes(shard_graph(step))
    assert (found["y"], found["dw"]) == ((1, 4, 20, 8), (1, 4, 8, 32))


def test_rows_that_each_group_looks_up_among_its_own_are_added_up_in_one_dimension():
    step = graph(
        op("rows", "Gather", "table ids", (4, 6, 8), in_strategy=((4, 1, 1), (4, 1))),
        backward=[op("dtable", "UnsortedSegmentSum", "drows ids", (20, 8), origin="rows")],
        saved="rows",
        types={"table": (4, 5, 8), "ids": (4, 6), "drows": (4, 6, 8)},
    )
    assert shapes(shard_graph(step))["dtable"] == (5, 8)


LOCAL = {LOCAL_MARK: True}


def test_a_local_reshape_keeps_its_part_whichever_dimension_is_cut():
    # (8, 2, 4) cut in the middle is not a regular split of (16, 4), and each rank reshapes its own half all the same.
    step = graph(
        op("norm", "Neg", "x", (8, 2, 4), in_strategy=((1, 2, 1),)),
        op("rows", "Reshape", "norm", (16, 4), **LOCAL),
        op("out", "MatMul", "rows w no yes", (16, 16), in_strategy=((2, 1), (4, 1))),
        backward=[op("drows", "Neg", "out_b", (16, 4)), op("dnorm", "Reshape", "drows", (8, 2, 4), origin="rows")],
        saved="out",
        types={"x": (8, 2, 4), "w": (16, 4)},
        no=0,
        yes=1,
    )
    sharding = shard_graph(step)
    found = shapes(sharding)
    assert (found["rows"], found["out"], found["dnorm"]) == ((8, 4), (8, 4), (8, 1, 4))
    assert sharding.redistributions == ()


def test_a_local_reshape_of_more_parts_than_its_reader_takes_gathers_them():
    step = graph(
        op("norm", "Neg", "x", (8, 2, 4), in_strategy=((4, 2, 1),)),
        op("rows", "Reshape", "norm", (16, 4), **LOCAL),
        op("out", "Neg", "rows", (16, 4), in_strategy=((2, 1),)),
        backward=[
            op("tied", "Depend", "norm_b x", (8, 2, 4)),
            op("rows_again", "Reshape", "tied", (16, 4), origin="rows", is_duplicate=True, **LOCAL),
        ],
        saved="norm",
        types={"x": (8, 2, 4)},
    )
    sharding = shard_graph(step)
    # As dry runs have it: what was gathered is kept, though the Reshape runs again. `qwen3 sp`, 804 MiB.
    of_forward, of_backward = sharding.graph.forward, sharding.graph.backward
    assert [node.op for node in of_forward] == ["Neg", "AllGather", "Reshape", "Neg"]
    assert [(node.op, node.inputs[0]) for node in of_backward] == [("Depend", "norm_b:arrived"), ("Reshape", "tied")]
    found = shapes(sharding)
    assert found["norm:arrived"] == found["tied"] == (8, 1, 4)
    assert found["rows"] == found["rows_again"] == (8, 4)
    assert sharding.unresolved == ()


def test_rows_that_are_scattered_are_gathered_in_backward():
    step = graph(
        op("y", "MatMul", "x w no yes", (16, 4), in_strategy=((1, 8), (1, 8))),
        op("part", "ReduceScatter", "y", (16, 4), in_strategy=((1, 1),), out_strategy=((8, 1),)),
        backward=[op("dpart", "Neg", "part_b", (16, 4)), op("dy", "AllGather", "dpart", (16, 4), origin="part")],
        saved="part",
        types={"x": (16, 8), "w": (4, 8)},
        no=0,
        yes=1,
    )
    found = shapes(shard_graph(step))
    assert (found["y"], found["part"], found["dpart"], found["dy"]) == ((16, 4), (2, 4), (2, 4), (16, 4))


def test_what_gradients_of_a_product_read_is_cut_as_what_came_out_of_it():
    step = graph(
        op("y", "MatMul", "x w no yes", (16, 8), in_strategy=((2, 1), (4, 1))),
        op("view", "Reshape", "y", (8, 2, 8), **LOCAL),
        op("z", "Neg", "view", (8, 2, 8), in_strategy=((1, 2, 4),)),
        backward=[
            op("dz", "Neg", "z_b", (8, 2, 8)),
            op("dy", "Reshape", "dz", (16, 8)),  # two views in one: the compiler names no origin
            op("dw", "MatMul", "dy x_b yes no", (8, 6), origin="y"),
        ],
        saved="z",
        types={"x": (16, 6), "w": (8, 6)},
        no=0,
        yes=1,
    )
    sharding = shard_graph(step)
    assert (shapes(sharding)["dy"], shapes(sharding)["dw"]) == ((8, 2), (2, 6))
    assert sharding.unresolved == ()


def test_a_cast_between_a_product_and_its_reader_is_no_obstacle():
    """`telechat3 full` of benchmarks/dryrun: gradients of `linear_fc1`, which gives float32, were taken as whole."""
    step = graph(
        op("y", "MatMul", "x w no yes", (16, 8), in_strategy=((2, 1), (4, 1))),
        op("wide", "Cast", "y type", (16, 8)),
        op("view", "Reshape", "wide", (8, 2, 8), **LOCAL),
        op("z", "Neg", "view", (8, 2, 8), in_strategy=((1, 2, 4),)),
        backward=[
            op("dz", "Neg", "z_b", (8, 2, 8)),
            op("dwide", "Reshape", "dz", (16, 8)),
            op("dy", "Cast", "dwide type", (16, 8), origin="wide"),
            op("dw", "MatMul", "dy x_b yes no", (8, 6), origin="y"),
        ],
        saved="z",
        types={"x": (16, 6), "w": (8, 6)},
        no=0,
        yes=1,
    )
    sharding = shard_graph(step)
    assert [shapes(sharding)[name] for name in ("dwide", "dy", "dw")] == [(8, 2), (8, 2), (2, 6)]
    assert sharding.unresolved == ()


def test_a_stage_without_head_has_no_loss():
    step = graph(
        op("embed", "Gather", "ids", (4,), layer=None),
        op("a", "Mul", "embed", (4,), (4,)),
        op("stat", "TupleGetItem", "a one", (4,), layer=None),  # the compiler's own, of the layer
        op("head", "MatMul", "a", (4,), layer=None),
        op("loss", "Exp", "head", (4,), layer=None),
        backward=[
            op("dhead", "Neg", "loss_b", (4,), layer=None),
            op("da", "Mul", "dhead stat_b", (4,)),
        ],
        saved="stat loss",
        one=1,
    )
    stage = drop_head(step)
    assert [node.name for node in stage.forward] == ["embed", "a", "stat"]
    assert [node.name for node in stage.backward] == ["da"]
    assert [entry.forward_name for entry in stage.saved] == ["stat"]


def test_further_outputs_of_an_operator_whose_rule_is_not_known_are_whole():
    step = graph(
        op("two", "Unknown", "x", (8, 4), (8, 2), in_strategy=((2, 1),), out_strategy=((2, 1),)), types={"x": (8, 4)}
    )
    assert [known.shape for known in shard_graph(step).graph.forward[0].outputs] == [(4, 4), (8, 2)]


def test_a_tuple_with_members_that_are_no_tensors_is_not_cut():
    """Its operands are one, its outputs two: which is which is not known."""
    step = graph(
        op("cut", "Neg", "x", (8, 4), in_strategy=((2, 1),)),
        op("both", "MakeTuple", "cut number", (8, 4), (1,)),
        types={"x": (8, 4)},
    )
    assert [known.shape for known in shard_graph(step).graph.forward[1].outputs] == [(8, 4), (1,)]


def test_one_number_is_nothing_to_cut():
    assert not op("sum", "ReduceSum", "x", (), (1,), (1, 1)).has_tensor_output
    assert op("two", "Split", "x", (1,), (2, 1)).has_tensor_output


def norm_of_a_cast(norm_strategy, num_parts=2):
    """Sequence-parallel: a cast of half of the tokens, which is recomputed, and a norm that reads it."""
    return graph(
        op("h", "Neg", "x", (8, 4), in_strategy=((num_parts, 1),)),
        op("cast", "Cast", "h", (8, 4), in_strategy=((num_parts, 1),)),
        op("norm", "RmsNorm", "cast gamma", (8, 4), (8, 1), in_strategy=norm_strategy),
        backward=[
            op("tied", "Depend", "h_b grad", (8, 4)),
            op("cast_again", "Cast", "tied", (8, 4), origin="cast", is_duplicate=True),
            op("dnorm", "RmsNormGrad", "grad cast_again", (8, 4), (4,), origin="norm"),
        ],
        saved="h",
        types={"x": (8, 4), "gamma": (4,), "grad": (8, 4)},
    )


def test_what_a_norm_gathers_is_kept_though_the_cast_before_it_would_run_again():
    # As dry runs have it: `llama tp2 sp`, 1358 MiB.
    sharding = shard_graph(norm_of_a_cast(((1, 1), (1,))))
    found = shapes(sharding)
    assert (found["cast"], found["cast:arrived"], found["dnorm"]) == ((4, 4), (8, 4), (8, 4))
    assert [(node.op, node.inputs) for node in sharding.graph.backward] == [
        ("RmsNormGrad", ("grad", "cast_again:arrived"))
    ]
    assert ("cast:arrived", "cast_again:arrived") in {
        (saved.forward_name, saved.backward_name) for saved in sharding.graph.saved
    }


def test_a_norm_keeps_its_slice_of_a_recomputed_cast():
    """Of the first layer, whose input is not split (dry run of docs/long_sequences.md)."""
    sharding = shard_graph(norm_of_a_cast(((2, 1), (1,)), num_parts=1))
    found = shapes(sharding)
    assert (found["cast"], found["cast:arrived"]) == ((8, 4), (4, 4))
    assert [(node.op, node.inputs) for node in sharding.graph.backward] == [
        ("RmsNormGrad", ("grad", "cast_again:arrived"))
    ]
    assert [node.op for node in sharding.graph.forward] == ["Neg", "Cast", "Slice", "RmsNorm"]


def test_a_gradient_is_scattered_before_its_cast():
    """The last layer hands half of the tokens on, and the norm after it reads all."""
    step = graph(
        op("h", "Neg", "x", (8, 4), in_strategy=((2, 1),)),
        op("cast", "Cast", "h", (8, 4)),
        op("norm", "RmsNorm", "cast gamma", (8, 4), (8, 1), in_strategy=((1, 1), (1,))),
        backward=[
            op("dnorm", "RmsNormGrad", "grad", (8, 4), (4,), origin="norm"),
            op("dx", "TupleGetItem", "dnorm zero", (8, 4), origin="norm"),
            op("dcast", "Cast", "dx", (8, 4), origin="cast"),
        ],
        types={"x": (8, 4), "gamma": (4,), "grad": (8, 4)},
        zero=0,
    )
    found = shapes(shard_graph(step))
    assert (found["cast"], found["dx"], found["dcast"]) == ((4, 4), (8, 4), (4, 4))


def test_a_norm_that_gathers_nothing_has_its_cast_run_again():
    sharding = shard_graph(norm_of_a_cast(((2, 1), (1,))))
    assert [node.name for node in sharding.graph.backward] == ["tied", "cast_again", "dnorm"]
    assert [saved.forward_name for saved in sharding.graph.saved] == ["h"]
