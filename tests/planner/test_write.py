from dataclasses import replace

import pytest

from mindswap.config.parse import parse_document
from mindswap.planner.problem import Plan
from mindswap.planner.write import compact_policy, memory_setting, plan_comment, write_plan
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.formats.mindformers1.stage_recompute import expand_stage_recompute
from mindswap.policy.model import ALL_LAYERS, Layers, OpRecompute, OpSwap, Policy
from mindswap.rules.checker import check_document, check_shape
from mindswap.simulator.cost.device_costs import find_costs

SOME = Layers((0, 1))


def cell(name: str, *children: CellNode) -> CellNode:
    return CellNode(name, "Cell", False, children)


def op(name: str) -> CellNode:
    return CellNode(name, "Op", True)


LAYER = cell(
    "",
    cell("attention", cell("wq", op("cast")), cell("wk", op("cast")), cell("wo", op("cast"))),
    cell("feed_forward", op("mul"), op("silu")),
    op("add"),
)


def swaps(*entries: tuple[str, Layers, int]) -> Policy:
    return Policy(True, op_swap=tuple(OpSwap(*entry) for entry in entries))


def test_names_that_differ_in_a_letter_become_one():
    policy = swaps((r"attention\.wq\.cast", ALL_LAYERS, 3), (r"attention\.wk\.cast", ALL_LAYERS, 3))
    assert compact_policy(policy, [LAYER]).op_swap == (OpSwap(r"attention\.w[kq]\.cast", ALL_LAYERS, 3),)


def test_names_that_differ_altogether_become_alternatives():
    policy = swaps((r"feed_forward\.mul", SOME, 3), (r"feed_forward\.silu", SOME, 3))
    assert compact_policy(policy, [LAYER]).op_swap == (OpSwap(r"feed_forward\.(mul|silu)", SOME, 3),)


def test_the_default_strategy_stays_as_it_is():
    """It is not in the order of its names: written and read back, entries in another one would be another policy."""
    policy = Policy(True, default_prefetch=10)
    assert compact_policy(policy, [LAYER]) == policy


def test_other_layers_or_distances_stay_apart():
    policy = swaps((r"attention\.wk\.cast", SOME, 3), (r"attention\.wq\.cast", ALL_LAYERS, 3))
    assert compact_policy(policy, [LAYER]) == policy
    policy = swaps((r"attention\.wk\.cast", SOME, 2), (r"attention\.wq\.cast", SOME, 3))
    assert compact_policy(policy, [LAYER]) == policy


NAMES = cell("", cell("a", *map(op, ("mul", "silu", "add", "cast", "exp"))), cell("b", op("mul"), op("w1")), op("w_"))


def compacted(*patterns: str, tree: CellNode = NAMES) -> list[str]:
    return [entry.pattern for entry in compact_policy(swaps(*((one, SOME, 1) for one in patterns)), [tree]).op_swap]


def test_four_names_are_one_entry_and_five_are_not():
    assert compacted(r"a\.mul", r"a\.silu", r"a\.add", r"a\.cast") == [r"a\.(add|cast|mul|silu)"]
    every = [rf"a\.{name}" for name in ("add", "cast", "exp", "mul", "silu")]
    assert compacted(*every) == every


def test_what_would_name_more_stays_apart():
    """`a.mul` and `b.w1` differ in two parts; `(a|b).mul` names both, `w[1_]` of a cell and of a layer nothing."""
    assert compacted(r"a\.mul", r"b\.w1") == [r"a\.mul", r"b\.w1"]
    assert compacted(r"a\.mul", r"b\.mul") == [r"[ab]\.mul"]
    assert compacted(r"b\.w1", "w_") == [r"b\.w1", "w_"]


def test_letters_in_brackets_and_other_signs_as_alternatives():
    """Only letters and figures stand in brackets, one for one."""
    tree = cell("", op("w_"), op("w1"), op("wq"), op("wqq"), op("ab"), op("cd"))
    assert compacted("w1", "wq", tree=tree) == ["w[1q]"]
    assert compacted("w1", "w_", tree=tree) == ["(w1|w_)"]
    assert compacted("wq", "wqq", tree=tree) == ["(wq|wqq)"]
    assert compacted("ab", "cd", tree=tree) == ["(ab|cd)"]


def test_patterns_are_not_joined_with_patterns():
    tree = cell("", op("w1"), op("w2"), op("w3"))
    assert compacted("w[12]", "w3", tree=tree) == ["w3", "w[12]"]
    assert compacted("(w1|w2)", "w3", tree=tree) == ["(w1|w2)", "w3"]


def test_recompute_is_joined_where_layers_are_the_same_and_sorted():
    again = tuple(
        OpRecompute(pattern, layers)
        for pattern, layers in ((r"b\.w1", SOME), (r"a\.silu", SOME), (r"a\.mul", SOME), (r"a\.add", ALL_LAYERS))
    )
    found = compact_policy(Policy(True, select_recompute=again), [NAMES]).select_recompute
    assert found == (
        OpRecompute(r"a\.(mul|silu)", SOME), OpRecompute(r"a\.add", ALL_LAYERS), OpRecompute(r"b\.w1", SOME),
    )  # fmt: skip


def plan_of(policy: Policy) -> Plan:
    return Plan(
        fits=True, policy=policy, step_time_ns=1_010_000_000, stage_peak_bytes=(2**34,),
        stage_static_bytes=(2**33,), host_bytes=0, budget_bytes=2**35, unconstrained_ns=10**9, lower_bound_ns=10**9,
        smallest_budget_bytes=2**34, least_budget_bytes=2**33, host_budget_bytes=2**40, holders=(), compared=(),
        num_evaluations=1,
    )  # fmt: skip


TEXT = """\
# mine
model: {model_config: {num_layers: 4}}  # four
swap_config:
  swap: False  # off
recompute_config:
  recompute: [1]
  mp_comm_recompute: False
"""


def test_what_is_written_reads_back_the_same_and_the_rest_stays():
    policy = Policy(
        True,
        op_swap=(OpSwap("add", ALL_LAYERS, 7), OpSwap(r"feed_forward\.mul", SOME, 2)),
        layer_recompute=Layers((3,)),
        select_recompute=(OpRecompute(r"attention\.w[kq]\.cast", SOME),),
        mp_comm_recompute=False,
    )
    text = write_plan(TEXT, parse_document(TEXT.encode(), "a.yaml"), plan_of(policy), 4, "some card", {})
    assert check_shape(parse_document(text.encode(), "a.yaml")).policy == policy
    assert text.startswith("# mine\nmodel: {model_config: {num_layers: 4}}  # four\n")
    assert "# mindswap: plan for 32.0 GiB per card on some card\n" in text
    # 1.01 s against 1 s; 2**34 bytes are 16 GiB
    assert "simulated: step 1.01 s, 1.0 % over keeping every activation; peak memory 16.0 GiB\n" in text


def test_a_second_plan_replaces_the_comment_of_the_first():
    once = write_plan(TEXT, parse_document(TEXT.encode(), "a"), plan_of(swaps(("add", SOME, 1))), 4, "card", {})
    twice = write_plan(once, parse_document(once.encode(), "a"), plan_of(swaps(("add", SOME, 2))), 4, "card", {})
    assert twice == once.replace("backward_prefetch: 1", "backward_prefetch: 2")


def written(text: str, budget_bytes: int = 2**35) -> str:
    plan = replace(plan_of(swaps(("add", SOME, 1))), budget_bytes=budget_bytes)
    return write_plan(text, parse_document(text.encode(), "a"), plan, 4, "card", memory_setting(budget_bytes))


@pytest.mark.parametrize(
    ("budget_bytes", "memory"),
    [(2**35, "32GiB"), (3 * 2**29, "1536MiB"), (2**30 + 1, "1025MiB"), (6 * 2**20, "6MiB")],
)
def test_the_budget_is_written_so_that_other_commands_judge_by_it(budget_bytes, memory):
    assert written(TEXT, budget_bytes).endswith(f"\nmindswap:\n  memory: '{memory}'\n")
    # One that was there is replaced, and what else the section says stays.
    again = TEXT + "mindswap: {memory: 40GiB, ignore: [overlap]}\n"
    assert f"mindswap: {{memory: '{memory}', ignore: [overlap]}}\n" in written(again, budget_bytes)


def test_a_budget_that_the_file_has_anyway_is_not_written():
    document = parse_document(TEXT.encode(), "a")
    text = write_plan(TEXT, document, plan_of(swaps(("add", SOME, 1))), 4, "card", {})
    assert "memory:" not in text and "op_name: 'add'" in text


def test_simulate_judges_by_the_budget_of_the_plan():
    document = parse_document(written(TEXT, 3 * 2**29).encode(), "a")
    assert find_costs([document], "atlas_800t_a2", {}).device.usable_memory_bytes == 3 * 2**29


def test_a_budget_above_what_the_file_allows_is_seen_by_check():
    """The plan is for 32 GiB."""
    small = TEXT + 'context: {max_device_memory: "30GB"}\n'
    found = check_document(parse_document(written(small).encode(), "a")).problems
    (problem,) = [each for each in found if "memory" in each.rule]
    assert problem.message.startswith("mindswap.memory: '32GiB' is more than the 30.0 GiB of context.max_device_memory")
    enough = check_document(parse_document(written(small.replace("30GB", "32GB")).encode(), "a")).problems
    assert not [each for each in enough if "memory" in each.rule]


@pytest.mark.parametrize(
    "recompute",
    [
        "",
        "recompute_config: {recompute: [2, 2], select_recompute: {mul: [1, 0]}, mp_comm_recompute: False}\n",
    ],
)
@pytest.mark.parametrize("swap", ["", "swap_config: {swap: True, op_swap: [], default_prefetch: 3}\n"])
def test_a_plan_that_keeps_everything_switches_swap_off(swap, recompute):
    """`check` warns of `swap: True, op_swap: []`; with `swap: False` a step needs as much (docs/rule_effects.md)."""
    base = "parallel_config: {pipeline_stage: 2}\nmodel: {model_config: {num_layers: 4}}\n"
    text = base + swap + recompute
    new = write_plan(text, parse_document(text.encode(), "a"), plan_of(Policy(is_swap_enabled=True)), 4, "card", {})
    checked = check_document(parse_document(new.encode(), "a"))
    assert checked.policy == Policy(is_swap_enabled=False) and not checked.problems
    recomputed = expand_stage_recompute(parse_document(new.encode(), "a"), 4).policy
    assert recomputed == Policy(is_swap_enabled=False)


def test_groups_of_layers_that_a_plan_does_not_use_are_taken_out():
    text = "model: {model_config: {num_layers: 4}}\nmindswap: {output_recompute: [0, 2]}\n"
    new = write_plan(text, parse_document(text.encode(), "a"), plan_of(Policy(is_swap_enabled=True)), 4, "card", {})
    assert "output_recompute" not in new


def test_a_plan_says_what_it_costs():
    """1.25 s where keeping everything takes 1 s; two stages."""
    plan = replace(
        plan_of(swaps(("add", SOME, 1))),
        budget_bytes=2**35, step_time_ns=1_250_000_000, unconstrained_ns=10**9, stage_peak_bytes=(2**30, 2**31),
    )  # fmt: skip
    assert plan_comment(plan, "card") == (
        "plan for 32.0 GiB per card on card\n"
        "simulated: step 1.25 s, 25.0 % over keeping every activation; peak memory 2.0 GiB"
    )
