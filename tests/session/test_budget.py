from mindswap.cost.device_file import load_device
from mindswap.policy.model import Policy
from mindswap.session.plan import budget_doubt, budget_of
from mindswap.session.step import Step, within_configuration
from tests.builders import document

GIB = 2**30


def step(text="{}", **overrides):
    """A step that is planned for nothing but its budget: atlas_800t_a2 has 58 GiB, its margin is 5 %."""
    config = document(text)
    device = within_configuration(load_device("atlas_800t_a2", overrides), config)
    return Step(config, Policy(), None, device, None)


def test_a_margin_of_the_device_stays_free():
    """58 GiB less 5 %: 62277025792 * 950 // 1000."""
    assert budget_of(step()) == (
        59163174502,
        "58.0 GiB (device atlas_800t_a2), less a margin of 5 %; --margin 0 for none",
    )
    assert budget_of(step(margin="0")) == (58 * GIB, "58.0 GiB (device atlas_800t_a2), no margin")


def test_the_configuration_may_allow_less_than_the_device_has():
    small = step("{context: {max_device_memory: 30GB}}", margin="0.1")
    assert small.device.usable_memory_bytes == 30 * GIB
    size, source = budget_of(small)
    assert size == 27 * GIB
    assert source.startswith("30.0 GiB (context.max_device_memory, x.yaml:1:31), less a margin of 10 %")
    assert step("{context: {max_device_memory: 59GB}}").device.usable_memory_bytes == 58 * GIB


def test_a_budget_that_is_named_is_taken_as_it_is():
    assert budget_of(step(memory="40GiB")) == (40 * GIB, "")
    assert budget_of(step(), "40GiB") == (40 * GIB, "")
    assert budget_of(step(memory="40GiB", margin="0.1"))[0] == 36 * GIB


def test_a_named_budget_above_the_configuration_is_doubted():
    asked = step("{context: {max_device_memory: 30GB}}", memory="40GiB")
    assert budget_of(asked) == (40 * GIB, "")
    assert budget_doubt(asked, 40 * GIB) == (
        "context.max_device_memory, x.yaml:1:31, is 30.0 GiB, less than the budget: raise it, or plan for less"
    )
    assert budget_doubt(asked, 30 * GIB) == budget_doubt(step(), 99 * GIB) == ""
