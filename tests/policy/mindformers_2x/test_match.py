import pytest

from mindswap.policy.cell_tree import PatternError
from mindswap.policy.mindformers_2x.tables import is_below, match_paths

PATHS = ("mlp", "mlp.linear_fc1", "mlp.linear_fc1.matmul", "self_attention")


@pytest.mark.parametrize(
    "pattern,found",
    [
        ("mlp", ("mlp",)),  # the whole path, not its beginning
        (r"mlp\.linear_fc1", ("mlp.linear_fc1",)),
        ("mlp.linear_fc1", ("mlp.linear_fc1",)),  # `.` is any character, a dot among them
        (".*fc1.*", ("mlp.linear_fc1", "mlp.linear_fc1.matmul")),  # `.*` crosses levels
        ("fc1", ()),
    ],
)
def test_a_pattern_matches_a_whole_path(pattern, found):
    assert match_paths(pattern, PATHS) == found


def test_what_is_no_regular_expression():
    with pytest.raises(PatternError):
        match_paths("*fc1", PATHS)


def test_what_never_comes_to_an_end():
    with pytest.raises(PatternError, match="takes longer than"):
        match_paths("(?R)", PATHS)


def test_below_is_by_whole_names():
    assert is_below("mlp.linear_fc1", "mlp")
    assert not is_below("mlp2.x", "mlp") and not is_below("mlp", "mlp")
