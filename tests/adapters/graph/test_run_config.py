"""With the plugin in place and swap off, MindFormers answers as it does alone, also to what is no configuration."""

import json

import pytest

from tests.adapters.training import run_python

pytestmark = pytest.mark.mindspore

# Asks the same questions before and after the hooks are in place.
ASK = """
import json
import mindformers
from mindformers.tools.register import MindFormerConfig
from mindformers.tools.register.template import ConfigTemplate
from mindswap.adapters.plugin import install
from mindswap.config.parse import parse_document


def answer(function, config):
    try:
        function(config)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return json.dumps(config, sort_keys=True, default=str)


def answers():
    train = {"run_mode": "train", "trainer": {"type": 1}, "model": {"model_config": 1, "arch": 1},
             "train_dataset": {"a": 1}, "train_dataset_task": {"type": 1}}
    predict = {"run_mode": "predict", "trainer": {"type": 1}, "model": {"model_config": 1, "arch": 1},
               "processor": {"type": 1}}
    bare = {"context": {"mode": 0, "device_target": "CPU"}, "parallel": {}}
    template, context = ConfigTemplate.apply_template, mindformers.build_context
    return {
        "template of None": answer(template, None),
        "template of a list": answer(template, []),
        "template of nothing": answer(template, {}),
        "template of a training": answer(template, MindFormerConfig(**train)),
        "template without swap_config": answer(template, MindFormerConfig(**train, swap_config=None)),
        "template of a prediction": answer(template, MindFormerConfig(**predict)),
        "template that fails": answer(template, {"run_mode": "train", "runner_config": {"no_such_key": 1}}),
        "context of None": answer(context, None),
        "bare context": answer(context, bare),
    }


alone = answers()
install(parse_document("swap_config: {swap: False}", "c.yaml"))
print("ANSWERS", json.dumps([alone, answers()]))
"""


def test_mindformers_answers_as_without_the_plugin(tmp_path):
    """Of upstream's TestTemplate::test_none_input and more; only a null section is written out later, not at once."""
    (tmp_path / "ask.py").write_text(ASK)
    result = run_python(tmp_path, "ask.py")
    assert result.exit_code == 0, result.log
    line = next(line for line in result.log.splitlines() if line.startswith("ANSWERS "))
    alone, hooked = json.loads(line.removeprefix("ANSWERS "))
    assert alone["template of None"] == "AttributeError: 'NoneType' object has no attribute 'get'"
    late = "template without swap_config"
    assert json.loads(hooked.pop(late))["swap_config"] is None and json.loads(alone.pop(late))["swap_config"]
    assert hooked == alone


@pytest.mark.parametrize("config", [{}, {"model": None}, {"model": {}}, {"model": {"model_config": {"num_layers": 2}}}])
def test_a_checkpoint_is_left_out_and_nothing_is_added_where_none_is_named(config):
    from mindswap.adapters.graph.build import _leave_out_checkpoint

    named = {"model": {"model_config": {"num_layers": 2, "checkpoint_name_or_path": "/data/llama2.ckpt"}}}
    before = repr(config)
    for each in (config, named):
        _leave_out_checkpoint(each)
    assert repr(config) == before
    assert named == {"model": {"model_config": {"num_layers": 2, "checkpoint_name_or_path": ""}}}
