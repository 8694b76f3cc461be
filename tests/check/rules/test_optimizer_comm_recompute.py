from textwrap import dedent

import pytest

from mindswap import cli
from tests.builders import check, found

TEXT = """
    parallel: {{enable_parallel_optimizer: {enabled}, parallel_optimizer_config: {{optimizer_level: {level}}}}}
    parallel_config: {{data_parallel: 8}}
    swap_config: {{swap: {swap}}}
    recompute_config:
      recompute: True
      parallel_optimizer_comm_recompute: {flag}
"""


def config(enabled=True, level="level1", swap=True, flag=True):
    return TEXT.format(enabled=enabled, level=level, swap=swap, flag=flag)


@pytest.mark.parametrize(
    ("values", "fix"),
    [
        (
            {},
            "delete it; parallel_optimizer_config: {optimizer_level: level3} gathers weights again in backward",
        ),
        ({"level": "level3"}, "delete it; optimizer_level: level3 gathers weights again in backward already"),
        ({"enabled": False}, "delete it; the parallel optimizer gathers no weights here"),
    ],
)
def test_it_says_where_the_effect_is_to_be_had(values, fix):
    problem = next(p for p in check(config(**values)).problems if p.rule == "optimizer-comm-recompute")
    assert (problem.location.line, problem.location.column, problem.level.value) == (6, 38, "warning")
    assert problem.fix == fix


@pytest.mark.parametrize("values", [{"flag": False}, {"swap": False}])
def test_nothing_is_said_where_it_is_not_asked_for_or_swap_is_off(values):
    """With swap off MindFormers does not pass the flag on, which is for `stage-recompute` to say."""
    assert "optimizer-comm-recompute" not in [rule for *_, rule in found(config(**values))]


def test_explain_says_it_too(capsys, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("model: {model_config: {num_layers: 2}}\n" + dedent(config()))
    cli.main(["explain", str(path)])
    output = "".join(capsys.readouterr())
    assert f"{path}:8:38: " in output and "[optimizer-comm-recompute]" in output
