"""The rules of acl_stream_assign.cc and insert_pre_fetch_depend.cc, by hand, on the step of `steps`."""

from dataclasses import replace

import pytest

from tests.executed.steps import swapped_graph
from tests.executed.timetable import make_timetable
from tests.graph.builders import copy_in, copy_out, graph, node


def release_of(timetable, buffer):
    (position,) = (i for i, names in enumerate(timetable.releases) if buffer in names)
    return position


def fetch_of(timetable, name):
    (position,) = (i for i, at in enumerate(timetable.fetches) if name in [fetch.node.name for fetch in at])
    return position


def offload_of(timetable, name):
    (position,) = (i for i, at in enumerate(timetable.offloads) if name in [node.name for node in at])
    return position


# Execution order: a, out, b, c, d, g0, ...: the copy out stands at 1, so 3 p behind it is d (p=1, operator 3); with the
# copy in before g1, g1 (p=2, operator 5); with p=3 nothing, so the last operator. First user of the copy in: g3,
# operator 7. It may start after operator 7 - 1 - p, so before 7 - p.
@pytest.mark.parametrize(("prefetch", "released", "fetched"), [(1, 3, 6), (2, 5, 5), (3, 7, 4), (0, 1, 7)])
def test_one_number_says_when_memory_goes_and_when_it_comes(prefetch, released, fetched):
    timetable = make_timetable(swapped_graph(prefetch), ["g3"])
    # With p = 0 the wait is at the copy itself, which is no operator: after the next one. b reads a, too.
    assert release_of(timetable, "a#0") == released
    assert fetch_of(timetable, "in") == fetched
    assert offload_of(timetable, "out") == 0


def test_a_copy_in_does_not_start_before_the_operator_behind_the_copy_out():
    # p = 6: operator 7 - 1 - 6 = 0 is a itself; the first behind the copy out is b, operator 1. So before operator 2.
    assert fetch_of(make_timetable(swapped_graph(6), ["g3"]), "in") == 2


def test_a_prefetch_beyond_the_first_operator_is_held_back_by_the_copy_out_alone():
    # p = 7: operator 7 - 1 - 7 = -1 is none.
    assert fetch_of(make_timetable(swapped_graph(7), ["g3"]), "in") == 1


def test_what_is_read_later_in_forward_stays_until_then():
    forward = [node("a", "Double", "x"), copy_out("out", "a", prefetch=1), node("b", "Double", "a")]
    forward += [node("c", "Double", "b"), node("d", "Add", "c a")]
    step = graph(forward, [copy_in("in", "out"), node("g", "Double", "in")], saved="out")
    assert release_of(make_timetable(step), "a#0") == 3


def test_copies_count_as_places_in_forward():
    # Order: a, out, b, out2, c, in2, d, in, g0, g1: six places behind `out` is `in`, which is no operator: the wait is
    # after g0. Three behind `out2` is d.
    forward = [node("a", "Double", "x"), copy_out("out", "a", prefetch=2), node("b", "Double", "a")]
    forward += [copy_out("out2", "b", prefetch=1), node("c", "Double", "b"), node("d", "Double", "c")]
    backward = [copy_in("in2", "out2"), node("g0", "Double", "in2"), copy_in("in", "out"), node("g1", "Add", "g0 in")]
    timetable = make_timetable(graph(forward, backward, saved="out out2"))
    assert release_of(timetable, "a#0") == 4
    assert release_of(timetable, "b#0") == 3


def test_a_copy_of_one_of_several_outputs_stands_behind_its_maker():
    # Order: a, out, b, c, d, g, and not a, b, c, d, out, g: three places behind `out` is d.
    forward = [node("a", "Attention", "x"), node("main", "TupleGetItem", "a 0"), node("b", "Double", "main")]
    forward += [node("c", "Double", "b"), node("d", "Double", "c")]
    forward += [node("other", "TupleGetItem", "a 1"), copy_out("out", "other", prefetch=1)]
    forward[0] = replace(forward[0], outputs=forward[0].outputs * 2)
    step = replace(graph(forward, [copy_in("in", "out"), node("g", "Double", "in")], saved="out"), constants={"1": 1})
    timetable = make_timetable(step)
    assert offload_of(timetable, "out") == 0
    assert (release_of(timetable, "a#0"), release_of(timetable, "a#1")) == (1, 3)


def test_views_are_no_operators_and_share_the_memory():
    forward = [node("a", "Double", "x"), node("v", "Reshape", "a"), copy_out("out", "v"), node("b", "Double", "v")]
    step = graph(forward, [copy_in("in", "out"), node("w", "Reshape", "in"), node("g", "Double", "w")], saved="out")
    timetable = make_timetable(step)
    assert [operator.node.name for operator in timetable.operators] == ["a", "b", "g"]
    assert timetable.operators[1].reads == ("a#0",)
    assert timetable.operators[2].reads == ("in#0",)


def test_masks_run_first_and_once():
    forward = [
        node("weight", "Load", "▸CR_table", layer=None),
        node("embed", "Gather", "ids weight", layer=None),
        node("h0", "Double", "embed", layer=0),
        node("mask", "Less", "ids", layer=None),
        node("m0", "Cast", "mask", layer=0),
        node("a0", "Add", "h0 m0", layer=0),
        node("m1", "Cast", "mask", layer=1, offload=True),
        node("a1", "Add", "a0 m1", layer=1),
    ]
    timetable = make_timetable(graph(forward, [node("g", "Add", "a1_b m1_b")], saved="a1 m1"))
    assert [operator.node.name for operator in timetable.operators] == ["embed", "mask", "m0", "h0", "a0", "a1", "g"]
    assert timetable.num_repeats == 1
    assert timetable.operators[-1].reads == ("a1#0", "m0#0")
