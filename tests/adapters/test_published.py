"""The simulated step of Llama2-7B against the published one, with the device as it comes."""

import json

import pytest

from tests import forked
from tests.adapters.graphs import ROOT

pytestmark = pytest.mark.mindspore

PUBLISHED = 4160  # tokens per second and card on Atlas 800T A2: MindFormers v1.3.0, docs/model_cards/llama2.md


def test_tokens_per_second_of_7b_are_within_15_percent():
    config = ROOT / "benchmarks" / "models" / "llama2_7b.yaml"
    command = ["-m", "mindswap", "simulate", "--json", str(config)]
    # Exit code 1: its peak does not fit, because that run was compiled without lazy_inline (benchmarks/published.py).
    result = forked.run(command)
    assert result.returncode in (0, 1), result.stderr
    report = json.loads(result.stdout)
    assert abs(report["tokens_per_s"] / PUBLISHED - 1) < 0.15
