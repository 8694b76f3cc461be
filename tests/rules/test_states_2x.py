"""Settings for optimizer states on the host in files of MindFormers 2.x."""

import pytest

from mindswap.config.parse import parse_document
from mindswap.rules.checker import check_pynative

NAME = "pynative-states-on-host"


def findings(optimizer):
    text = f"training: {{}}\nmodel: {{model_type: qwen3, num_hidden_layers: 2}}\noptimizer: {{{optimizer}}}\n"
    return [problem for problem in check_pynative(parse_document(text, "x.yaml")).problems if problem.rule == NAME]


@pytest.mark.parametrize(
    ("optimizer", "effect"),
    [
        ("swap: True", "AdamW of MindFormers 2.1.0 ignores it silently"),  # AdamW is the default
        ("type: AdamW, swap: 1", "optimizer.swap: 1: AdamW of MindFormers 2.1.0 ignores it silently"),
        ("type: AdamW, enable_cpu_offload: True", "Not support enable_cpu_offload."),
        ("type: Muon, swap: True", "Muon does not support swap."),
        ("type: Muon, enable_cpu_offload: True", "Muon of MindFormers 2.1.0 ignores it silently"),
    ],
)
def test_states_on_the_host_are_refused(optimizer, effect):
    (problem,) = findings(optimizer)
    assert effect in problem.message and problem.location.line == 3


@pytest.mark.parametrize("optimizer", ["", "type: AdamW, swap: False", "type: Muon, enable_cpu_offload: null"])
def test_states_on_the_card_are_no_finding(optimizer):
    assert findings(optimizer) == []
