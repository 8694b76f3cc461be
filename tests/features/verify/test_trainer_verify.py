"""`mindswap verify` of files of MindFormers 2.x, with the trainer of MindFormers 2.1.0 and no card."""

import json
from pathlib import Path

import pytest
import yaml

from mindswap import cli
from mindswap.features.dryrun import has_mindformers_2x

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.mindformers2,
    pytest.mark.skipif(not has_mindformers_2x(), reason="make test-2x runs it where MindFormers 2.x is"),
]
SMALL = Path(__file__).parents[2] / "data/qwen3_2x.yaml"


def verified(capsys, folder, *words, **sections):
    data = yaml.safe_load(SMALL.read_text("utf-8")) | sections
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    code = cli.main(["verify", str(file), "--brief", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_cells_are_copied_out_and_back_and_recomputed(tmp_path, capsys):
    """With several processes; what stands below a recomputed cell has no effect."""
    swap = {"enable": True, "default_prefetch": 2, "op_swap": [{"op_name": "mlp.linear_fc1", "layers": ["0-1"]}]}
    recompute = {"mode": "select", "select_module": {"mlp": [1], "self_attention": [0]}}
    training = {**yaml.safe_load(SMALL.read_text("utf-8"))["training"], "global_batch_size": 2}
    code, data = verified(capsys, tmp_path, "--cards", "2", swap=swap, recompute=recompute, training=training)
    entries = {entry["entry"]: entry for entry in data["entries"]}
    swapped = entries["swap.op_swap[0]"]
    assert (code, data["ok"], swapped["acts_in"], swapped["ok"]) == (1, False, [0], False)
    assert swapped["num_copies"] > 0 and swapped["swapped_bytes"] > 0
    assert [row["rule"] for row in data["problems"]] == ["no-effect"]
    assert entries["recompute.select_module['mlp']"]["acts_in"] == [1]
    (layer,) = data["layers"]
    assert (layer["layer"], layer["released_by"], layer["fetched_by"]) == (0, 2, 2)
    assert layer["num_out"] == layer["num_back"] == swapped["num_copies"]


def test_the_last_layers_leave_with_the_swap_of_mindswap(tmp_path, capsys):
    swap = {"enable": True, "layer_swap": [{"layers": ["0-3"]}]}
    code, data = verified(capsys, tmp_path, swap=swap, mindswap={"swap_engine": "mindswap"})
    assert (code, data["ok"]) == (0, True)
    assert [row["released_by"] for row in data["layers"]] == [1, 2, 3, 3]
    assert data["own_swap"]["num_as_predicted"] == data["own_swap"]["num_passes"] > 0
