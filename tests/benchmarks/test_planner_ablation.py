"""Constants and rows of the ablation are those of the planner, and switching one off changes what it should."""

import planner_ablation
import pytest

from mindswap.planner.solver import column_generation, distances, fast


@pytest.mark.parametrize("name", planner_ablation.CONSTANTS)
def test_a_constant_is_switched_off_where_it_is_used_and_on_again(name):
    modules = planner_ablation.modules_of(name)
    before = [getattr(module, name) for module in modules]
    with planner_ablation.switched_off(name):
        values = [getattr(module, name) for module in modules]
    assert modules and values == [planner_ablation.CONSTANTS[name]] * len(modules) != before
    assert [getattr(module, name) for module in modules] == before


def test_every_tuned_number_of_the_solver_is_switched_off():
    """But limits of effort."""
    limits = {"MAX_OPERATORS", "MIN_EVALUATIONS", "MISSING_FACTOR", "INTEGER_GAP", "KEEP"}
    for module in (fast, column_generation, distances):
        numbers = {name for name in vars(module) if name.isupper() and isinstance(getattr(module, name), int | float)}
        assert numbers <= {*planner_ablation.CONSTANTS, *limits}, module


def test_a_row_makes_the_bound_lower_or_leaves_it():
    """A row that made it higher would be a grant to policies, which the bound needs to be one."""
    case = planner_ablation.load_case("qwen2_0_5b", "a3_die")
    assert len(case.budgets) == len(planner_ablation.SHARES)
    worth = {name: planner_ablation.worth_of_row(name, [case]) for name in planner_ablation.ROWS}
    assert min(min(each.points) for each in worth.values()) > -1e-3
    assert {name for name in worth if max(worth[name].points) > 0.3} >= {"window_ns", "unfused_extra_ns"}
