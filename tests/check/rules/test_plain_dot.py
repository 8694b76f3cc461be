import pytest

from tests.builders import check, found, trees


def op_swap(name):
    return f"swap_config: {{swap: True, op_swap: [{{op_name: '{name}', backward_prefetch: 2, layers: [0]}}]}}"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("attention.flash_attention", r"attention\.flash_attention"),
        (".*.flash_attention", r".*\.flash_attention"),
        (r"feed_forward\.w1.activation.silu", r"feed_forward\.w1\.activation\.silu"),
        ("attention.(wq|wo)", r"attention\.(wq|wo)"),
        ("feed_forward..+", r"feed_forward\..+"),
    ],
)
@pytest.mark.parametrize("model", [None, trees()])
def test_a_dot_between_names(name, meant, model):
    problems = check(op_swap(name), model).problems
    assert [(p.location.column, p.rule, p.level.value, p.fix) for p in problems] == [
        (47, "plain-dot", "error", f"op_name: '{meant}'")
    ]


@pytest.mark.parametrize(
    "name",
    [".*", ".+", r".*\.flash_attention", r"feed_forward\.w.\.matmul", "att.*", "att.{6}", "attention[.]?", r"\w+"],
)
def test_a_dot_that_is_a_wildcard_passes(name):
    assert found(op_swap(name)) == []


def test_it_is_a_warning_where_the_pattern_matches():
    problems = check(op_swap("feed.forward")).problems
    assert [(p.rule, p.level.value) for p in problems] == [("plain-dot", "warning")]
