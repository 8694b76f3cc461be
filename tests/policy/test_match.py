import pytest

from mindswap.policy.cell_tree import PatternError, match_pattern, split_pattern
from tests.builders import LLAMA, layer

LAYER = layer(LLAMA)


def names(pattern):
    return [match.name for match in match_pattern(pattern, LAYER)]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("attention", ["attention"]),
        ("add", ["add"]),
        (r"attention\.flash_attention", ["attention.flash_attention"]),
        (r"attention\.flash_attention\.flash_attention", ["attention.flash_attention.flash_attention"]),
        (r".*\.flash_attention", ["attention.flash_attention"]),
        (r"attention\.w[qo]", ["attention.wq", "attention.wo"]),
        (r".*\.norm", ["attention_norm.norm", "ffn_norm.norm"]),
        (".*", ["attention_norm", "ffn_norm", "attention", "feed_forward", "add"]),
        (r"feed_forward\..*", [f"feed_forward.{name}" for name in ("w1", "w2", "w3", "mul")]),
        (r"feed_forward\.w.\.matmul", [f"feed_forward.w{number}.matmul" for number in (1, 2, 3)]),
        ("atten", []),
        ("flash_attention", []),
        (r"add\.anything", []),
        (r"attention\.", []),
        ("", []),
    ],
)
def test_each_part_matches_one_whole_name(pattern, expected):
    assert names(pattern) == expected


def test_star_does_not_cross_a_level():
    assert names(r"feed.*\.silu") == []
    assert names(r".*\.w1\..*\.silu") == ["feed_forward.w1.activation.silu"]


def test_a_match_knows_what_it_found():
    cell, primitive = (match_pattern(name, LAYER)[0].node for name in ("attention", "add"))
    assert not cell.is_primitive and primitive.is_primitive


@pytest.mark.parametrize("pattern", ["(", "[", "*", r"a\.(", "a" * 1001])
def test_what_is_no_regex(pattern):
    with pytest.raises(PatternError):
        names(pattern)


def test_endless_backtracking_is_stopped():
    with pytest.raises(PatternError, match="takes longer"):
        names("(?R)")


def test_patterns_are_split_at_escaped_dots():
    assert split_pattern(r"a\.b.c\.d") == ("a", "b.c", "d")
