"""Refusals against the real MindFormers and MindSpore: they stop at the mistake, and take what is right."""

import os
from pathlib import Path

import pytest

from mindswap.config.render import document_from_data
from mindswap.config.source import load_document
from mindswap.rules.checker import check_document
from tests.rules.refusal_cases import MODULES, OTHERS, Case, read_cases

pytestmark = pytest.mark.mindspore

ROOT = Path(__file__).resolve().parents[2]
CASES = [case for module in (*MODULES, OTHERS) for case in read_cases(module)]
CALLED = [case for case in CASES if case.call != "read" and not case.call.startswith("library: ")]
IN_LIBRARY = [case for case in CASES if case.call.startswith("library: ")]


@pytest.fixture(autouse=True)
def unchanged_environment():
    """Restore variables that MindFormers sets of a configuration; those of its import stay."""
    import mindformers  # noqa: F401

    variables = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(variables)


@pytest.mark.parametrize("case", CALLED, ids=str)
def test_mindformers_stops_at_the_mistake_and_takes_what_is_right(case: Case) -> None:
    from tests.rules.upstream_calls import call

    with pytest.raises((ValueError, TypeError, KeyError, NotImplementedError, RuntimeError, AssertionError, OSError)):
        call(case, case.text.replace("@", ""))
    call(case, case.right)


RUNS = ("configs/llama2_7b/pretrain_llama2_7b.yaml", "benchmarks/models/gpt_175b_tp2_pp4_vpp2.yaml",
        "tests/data/deepseek_v3_small.yaml")  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_a_configuration_that_mindformers_completed_is_refused_nothing(name: str) -> None:
    """As `mindswap run` reads it: with the defaults of MindFormers, and after its validators."""
    from tests.rules.upstream_calls import completed

    document = load_document(ROOT / name)
    data = completed(ROOT / name) | {"swap_config": {"swap": True, "default_prefetch": 1, "layer_swap": None}}
    checked = check_document(document_from_data(data, "command line", base=document), is_training_start=True)
    assert [problem for problem in checked.errors if problem.rule.endswith("-refused")] == []


@pytest.mark.parametrize("case", IN_LIBRARY, ids=str)
def test_the_compiler_has_the_message(case: Case) -> None:
    """Its passes run on an Ascend backend only; that they say this is all that a test without one can see."""
    import mindspore

    library = Path(mindspore.__file__).parent / "lib" / "libmindspore_frontend.so"
    assert case.call.removeprefix("library: ").encode() in library.read_bytes()
