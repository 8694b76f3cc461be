import pytest

from tests.builders import check, found


def levels(text):
    return [(p.location.line, p.rule, p.level.value) for p in check(text).problems]


def test_a_second_key_is_an_error_in_what_mindswap_reads():
    text = """
        swap_config:
          swap: True
          default_prefetch: 10
          default_prefetch: 20
    """
    assert found(text) == [(4, 3, "duplicate-key")]
    assert check(text).problems[0].message.startswith("swap_config.default_prefetch: appears twice, first at x.")


def test_it_is_a_warning_elsewhere():
    text = """
        optimizer: {eps: 1}
        optimizer: {eps: 2}
        swap_config: {swap: True}
    """
    assert levels(text) == [(2, "duplicate-key", "warning")]


def test_it_is_a_warning_while_swap_is_off():
    text = """
        swap_config:
          swap: False
          swap: False
        context: {mode: 0, mode: 0}
    """
    assert levels(text) == [(3, "duplicate-key", "warning"), (4, "duplicate-key", "warning")]


@pytest.mark.parametrize(
    "text",
    ["swap_config:\n  swap: True\n  swap: False", "swap_config: {swap: True}\nswap_config: {default_prefetch: 1}"],
)
def test_it_is_an_error_where_it_switches_swap_off(text):
    """Else the training runs, and swaps nothing."""
    assert ("duplicate-key", "error") in [(p.rule, p.level.value) for p in check(text).problems]


def test_the_last_one_decides_whether_swap_is_on():
    assert check("swap_config: {swap: True, swap: False}").is_swap_enabled is False


def test_keys_inside_list_entries_are_found():
    text = "swap_config: {swap: True, layer_swap: [{layers: [0], layers: [1], backward_prefetch: 2}]}"
    assert found(text) == [(1, 54, "duplicate-key")]


def test_merged_keys_are_no_duplicates():
    text = """
        base: &base {swap: True, default_prefetch: 3}
        swap_config:
          <<: *base
          default_prefetch: 10
    """
    assert found(text) == []
    assert check(text).policy.default_prefetch == 10
