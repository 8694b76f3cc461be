from mindswap.commands.compare import other_models
from tests.builders import document

LLAMA = document("model: {arch: {type: LlamaForCausalLM}, model_config: {num_layers: 32, hidden_size: 4096}}")
SHORT = document("model: {arch: {type: LlamaForCausalLM}, model_config: {num_layers: 28, hidden_size: 4096}}")
QWEN = document("model: {model_config: {model_type: qwen3, num_hidden_layers: 32}}")


def test_another_model_than_the_first_is_named():
    assert other_models([("a", LLAMA), ("b", SHORT)]) == [
        "b is another model than a (layers: 28, not 32): their step times are of different work"
    ]


def test_legacy_and_newer_configurations_are_compared_by_what_both_state():
    (note,) = other_models([("a", LLAMA), ("b", QWEN)])
    assert note.startswith("b is another model than a (model: 'qwen3', not 'LlamaForCausalLM'):")


def test_the_same_model_under_two_policies_is_not():
    assert other_models([("a", LLAMA), ("b", LLAMA)]) == []
    assert other_models([("a", LLAMA)]) == []
