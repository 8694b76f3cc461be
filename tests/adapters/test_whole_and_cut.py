"""A few compiled layers say of a model with experts what the whole of it would say, once compiled."""

import json

import pytest
import yaml

from tests import forked
from tests.adapters.edits import edited
from tests.adapters.graphs import ROOT
from tests.strength import is_nightly

pytestmark = pytest.mark.mindspore

# Layers of the model; of equal layers in a row the first, the second and the last are compiled. The first layer of
# DeepSeek-V3 is dense, so it and three of the four others.
FAMILIES = {"deepseek3": (5, 4), "qwen3_moe": (4, 3)}
BY_DAY = ["deepseek3"]  # has dense layers and multi-token prediction, too


@pytest.mark.parametrize("family", FAMILIES if is_nightly() else BY_DAY)
def test_the_cut_model_is_the_whole_one(family, tmp_path):
    num_layers, num_compiled = FAMILIES[family]
    source = yaml.safe_load((ROOT / "configs" / family / "cpu" / "op_swap.yaml").read_text())
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(edited(source, {"model.model_config.num_hidden_layers": num_layers})))
    command = ["-m", "tests.adapters.whole_and_cut", str(config), str(num_layers)]
    result = forked.run(command, cwd=ROOT)
    assert result.returncode == 0, result.stderr[-3000:]
    whole, cut = json.loads(result.stdout.splitlines()[-1])  # MindFormers logs before it
    assert (whole.pop("num_compiled"), cut.pop("num_compiled")) == (num_layers, num_compiled)
    assert cut == whole
    times, peaks = zip(*whole["steps"], strict=True)
    assert times[2] > times[0] and peaks[2] < peaks[0]  # what is compared depends on the policy
