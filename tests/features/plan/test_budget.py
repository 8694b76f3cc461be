import pytest

from mindswap.errors import PlanError
from mindswap.features.plan import budget_warning, find_budget, make_plan, make_problem
from mindswap.features.step import Step
from mindswap.policy.model import Policy
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.device_costs import with_environment, within_configuration
from mindswap.simulator.cost.device_file import load_device, read_cost_settings
from mindswap.simulator.cost.hardware import with_fragments
from mindswap.simulator.cost.static_memory import communication_bytes
from tests.builders import document
from tests.simulator.steps import model

GIB = 2**30


def step(text="{}", **overrides):
    """A step that is planned for nothing but its budget: atlas_800t_a2 has 58 GiB, its margin is 5 %."""
    config = document(text)
    made = model()
    made.costs = CostTable(within_configuration(load_device("atlas_800t_a2", overrides), config))
    return Step(config, Policy(), made, None)


def test_a_margin_of_the_device_stays_free():
    """58 GiB less 5 %: 62277025792 * 950 // 1000."""
    assert find_budget(step()) == (
        59163174502,
        "58.0 GiB (device atlas_800t_a2), less a margin of 5 %; --margin 0 for none",
    )
    assert find_budget(step(margin="0")) == (58 * GIB, "58.0 GiB (device atlas_800t_a2), no margin")


def test_the_configuration_may_allow_less_than_the_device_has():
    small = step("{context: {max_device_memory: 30GB}}", margin="0.1")
    assert small.device.usable_memory_bytes == 30 * GIB
    size, source = find_budget(small)
    assert size == 27 * GIB
    assert source.startswith("30.0 GiB (context.max_device_memory, x.yaml:1:31), less a margin of 10 %")
    assert step("{context: {max_device_memory: 59GB}}").device.usable_memory_bytes == 58 * GIB


def test_a_budget_that_is_named_is_taken_as_it_is():
    assert find_budget(step(memory="40GiB")) == (40 * GIB, "")
    assert find_budget(step(), "40GiB") == (40 * GIB, "")
    assert find_budget(step(memory="40GiB", margin="0.1"))[0] == 36 * GIB


def test_a_named_budget_above_the_configuration_is_doubted():
    asked = step("{context: {max_device_memory: 30GB}}", memory="40GiB")
    assert find_budget(asked) == (40 * GIB, "")
    assert budget_warning(asked, 40 * GIB) == (
        "context.max_device_memory, x.yaml:1:31, is 30.0 GiB, less than the budget: raise it, or plan for less"
    )
    assert budget_warning(asked, 30 * GIB) == budget_warning(step(), 99 * GIB) == ""


@pytest.mark.parametrize(
    ("value", "text", "size_mib", "source"),
    [
        ("120", "{}", 2 * 120 * 3, "environment, HCCL_BUFFSIZE=120"),
        ("120", "{mindswap: {hccl_buffer: 50MiB}}", 2 * 50 * 3, "set by the user"),
        ("", "{mindswap: {hccl_buffer: 50MiB}}", 2 * 50 * 3, "set by the user"),
        ("0", "{}", 2 * 200 * 3, "CANN 8.5"),
        ("1GB", "{}", 2 * 200 * 3, "CANN 8.5"),
    ],
)
def test_buffers_of_hccl_follow_the_configuration_then_the_environment(value, text, size_mib, source):
    """Two for each of three communicators; 200 MiB by the device file."""
    device = load_device("atlas_800t_a2", read_cost_settings(document(text)).overrides)
    device = with_environment(device, {"HCCL_BUFFSIZE": value})
    assert communication_bytes(("world", "tensor parallel", "data parallel"), device) == size_mib * 2**20
    assert device.sources["hccl_buffer"].startswith(source)


@pytest.mark.parametrize(
    ("value", "overrides", "permille", "source"),
    [
        ("enable_vmm: False, memory_tracker:True", {}, 90, "environment, MS_ALLOC_CONF=enable_vmm:False"),
        ("enable_vmm:True", {}, 0, "MindSpore, AscendVmmAdapter"),
        ("enable_vmm:False", {"fragments": "0.05"}, 50, "set by the user"),
        ("enable_vmm:False", {"fragments": "0"}, 0, "set by the user"),
    ],
)
def test_fragments_count_where_the_pool_maps_no_pages(value, overrides, permille, source):
    device = with_environment(load_device("atlas_800t_a2", overrides), {"MS_ALLOC_CONF": value})
    assert device.fragments_permille == permille and device.sources["fragments"].startswith(source)


def test_a_plan_leaves_room_for_fragments():
    """A tenth on top of what is used: of 44 GiB 40 can be used; what is used of 20 GiB takes 22."""
    asked = step(fragments="0.1", memory="44GiB")
    assert make_problem(asked).budget_bytes == 40 * GIB
    assert make_problem(step(memory="44GiB")).budget_bytes == 44 * GIB
    assert with_fragments(asked.device, 20 * GIB) == 22 * GIB


def test_a_budget_above_the_memory_of_the_device_is_refused_before_anything_is_planned():
    with pytest.raises(PlanError, match=r"memory: 73.0 GiB is more than the 61.0 GiB of the device\n *allowed: up to"):
        find_budget(step(), "73GiB")
    assert find_budget(step(), "60GiB") == (60 * GIB, "")


def test_a_plan_fits_with_the_fragments_of_its_own_replay_in_the_pool():
    # With several micro-batches the model is the same with swap and without, so that it has no workspace in both.
    planned = step("{runner_config: {gradient_accumulation_steps: 2}}", fragments="0.09")
    kept = planned.model.simulate(Policy())
    kept_bytes = max(planned.model.actual_peaks_bytes(kept))
    assert kept_bytes > kept.peak_bytes
    for budget_bytes in (kept_bytes, kept_bytes * 9 // 10):
        plan = make_plan(planned, budget_bytes)
        simulated = planned.model.simulate(plan.policy)
        assert plan.fits and max(planned.model.actual_peaks_bytes(simulated)) <= budget_bytes
        assert "fragments of the pool, which maps no pages" in plan.budget_source
