"""Refusals against the real MindFormers and MindSpore: they stop at the mistake, and take what is right."""

from pathlib import Path

import pytest

from tests.check.refusal_cases import MODULES, OTHERS, Case, read_cases

pytestmark = pytest.mark.mindspore

CASES = [case for module in (*MODULES, OTHERS) for case in read_cases(module)]
CALLED = [case for case in CASES if case.call != "read" and not case.call.startswith("library: ")]
IN_LIBRARY = [case for case in CASES if case.call.startswith("library: ")]


@pytest.mark.parametrize("case", CALLED, ids=str)
def test_mindformers_stops_at_the_mistake_and_takes_what_is_right(case: Case) -> None:
    from tests.check.upstream_calls import call

    with pytest.raises((ValueError, TypeError, KeyError, NotImplementedError, RuntimeError, AssertionError, OSError)):
        call(case, case.text.replace("@", ""))
    call(case, case.right)


@pytest.mark.parametrize("case", IN_LIBRARY, ids=str)
def test_the_compiler_has_the_message(case: Case) -> None:
    """Its passes run on an Ascend backend only; that they say this is all that a test without one can see."""
    import mindspore

    library = Path(mindspore.__file__).parent / "lib" / "libmindspore_frontend.so"
    assert case.call.removeprefix("library: ").encode() in library.read_bytes()
