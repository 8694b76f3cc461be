import pytest

from tests.builders import check, found


@pytest.mark.parametrize(
    ("layers", "place", "fix"),
    [
        ("[0, 1.0]", (4, 43), "1"),
        ("[0, '1']", (4, 43), "1"),
        ("[0, x]", (4, 43), ""),
        ("[True]", (4, 40), "layers: True"),
        ("[[0]]", (4, 40), ""),
        ("[3-1]", (4, 40), ""),
        ("3", (4, 39), "layers: [3]"),
        ("'3'", (4, 39), "layers: [3]"),
        ("all", (4, 39), "layers: True"),
        ("null", (4, 39), ""),
        ("{}", (4, 39), ""),
        ("2.5", (4, 39), ""),
    ],
)
def test_layers_take_integers_ranges_and_true(layers, place, fix):
    text = f"""
        swap_config:
          swap: True
          layer_swap:
            - {{backward_prefetch: 20, layers: {layers}}}
    """
    problem = check(text).problems[0]
    assert (problem.location.line, problem.location.column, problem.rule, problem.fix) == (*place, "wrong-type", fix)
    assert len(check(text).problems) == 1


@pytest.mark.parametrize(
    ("section", "place"),
    [
        ("swap_config: [1]", (1, 14)),
        ("swap_config: yes please", (1, 14)),
        ("swap_config: {swap: True, layer_swap: 3}", (1, 39)),
        ("swap_config: {swap: True, layer_swap: [3]}", (1, 40)),
        ("swap_config: {swap: True, op_swap: attention}", (1, 36)),
        ("swap_config: {swap: True, op_swap: {attention: 10}}", (1, 48)),
        ("swap_config: {swap: True, op_swap: [{op_name: 1, backward_prefetch: 1, layers: True}]}", (1, 47)),
        ("swap_config: {swap: True, op_swap: [{op_name: '', backward_prefetch: 1, layers: True}]}", (1, 47)),
        ("swap_config: {swap: True, op_swap: [{op_name: [], backward_prefetch: 1, layers: True}]}", (1, 47)),
        ("swap_config: {swap: True, op_swap: [{op_name: [add, 1], backward_prefetch: 1, layers: True}]}", (1, 53)),
        ("{swap_config: {swap: True}, recompute_config: [1]}", (1, 47)),
        ("{swap_config: {swap: True}, recompute_config: {recompute: 3}}", (1, 59)),
        ("{swap_config: {swap: True}, recompute_config: {recompute: null}}", (1, 59)),
        ("{swap_config: {swap: True}, recompute_config: {select_recompute: add}}", (1, 66)),
        ("{swap_config: {swap: True}, recompute_config: {select_recompute: {add: 1}}}", (1, 72)),
        ("{swap_config: {swap: True}, recompute_config: {select_recompute: {1: True}}}", (1, 67)),
        ("{swap_config: {swap: True}, recompute_config: {recompute_slice_activation: 1}}", (1, 76)),
        ("{swap_config: {swap: True}, recompute_config: {mp_comm_recompute: 'True'}}", (1, 67)),
    ],
)
def test_every_place_says_what_it_takes(section, place):
    assert found(section) == [(*place, "wrong-type")]


def test_a_section_that_aliases_blow_up_is_refused():
    lines = ["a0: &a0 [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    text = "\n".join([*lines, "swap_config: {swap: True, layer_swap: [{backward_prefetch: 1, layers: *a8}]}"])
    assert found(text) == [(10, 14, "wrong-type")]


def test_nothing_is_found_in_a_good_file():
    text = """
        swap_config: {swap: True, layer_swap: [{backward_prefetch: 20, layers: [0, '2-3']}]}
        recompute_config: {recompute: False, mp_comm_recompute: True}
    """
    assert found(text) == []


def test_the_fix_for_one_operator_keeps_its_name():
    text = r"""
        swap_config: {swap: True}
        recompute_config: {select_recompute: {'feed_forward\.mul': 2}}
    """
    assert check(text).problems[0].fix == r"'feed_forward\.mul': [2]"


def test_a_default_prefetch_of_null_is_not_set():
    assert found("swap_config: {swap: True, default_prefetch: null}") == []


def test_layers_that_were_probably_meant():
    text = "{swap_config: {swap: True, layer_swap: [{backward_prefetch: 1, layers: %s}]}}"
    (problem,) = check(text % "'0-3,5'").problems
    assert problem.fix == "layers: ['0-3', 5]"
    fixes = [problem.fix for problem in check(text % "[True, False]").problems]
    assert fixes == ["layers: True", "0, if the first layer is meant"]


def test_our_own_switch_is_a_bool():
    assert found("{swap_config: {swap: True}, mindswap: {cpu_stand_ins: yes please}}") == [(1, 55, "wrong-type")]
