"""The interface that finds references holds on the Ascend backend, in a dry run without a card."""

import pytest

from mindswap.features.dryrun.cann_stand_ins import prepare_stand_ins
from mindswap.features.dryrun.trainer_run import run_program
from tests.features.dryrun.test_trainer_on_backend import has_mindformers_2x

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.mindformers2,
    pytest.mark.skipif(not has_mindformers_2x(), reason="make test-2x runs it where MindFormers 2.x is"),
]


def test_what_reaches_device_memory_is_found_and_what_nobody_reaches_is_freed(tmp_path):
    """4 MiB each; an array is a copy there, so it holds nothing."""
    prepare_stand_ins(lambda line: None)
    program = "tests.adapters.pynative.references_on_backend"
    answers, _ = run_program(program, {}, tmp_path / "look", lambda line: None)
    assert answers.pop("array") == [False, False, 4]
    assert len(answers) == 6
    assert {name: answer for name, answer in answers.items() if answer != [True, False, 4]} == {}
