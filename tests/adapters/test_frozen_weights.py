"""Weights that MindFormers freezes (`pet_config`), of real networks; peaks are those of dry runs.

Dry runs of 2026-11-29 with mindspore 2.9.0 and mindformers 1.9.0, rank 0 of 8, `mindswap dryrun FILE --full`.
"""

from pathlib import Path

import pytest
import yaml

from tests.forked import run

pytestmark = pytest.mark.mindspore

CASE = Path("configs/llama2_7b/case4_swap_and_recompute.yaml")
SMALL = {"hidden_size": 1024, "num_heads": 8, "num_layers": 4, "seq_length": 1024, "vocab_size": 8000, "batch_size": 2}
LORA = {
    "pet_type": "lora",
    "lora_rank": 16,
    "lora_alpha": 16,
    "lora_dropout": 0.05,
    "target_modules": ".*wq|.*wk|.*wv|.*wo",
}
SIMULATED = """
import sys, mindswap
from mindswap.features.explain import explain_config
print(*explain_config(sys.argv[1]).data["notes"], sep="\\n")
step = mindswap.load_step(sys.argv[1])
simulated = step.simulate().simulated
static = simulated.static[0]
print(*step.model.caveats, sep="\\n")
print(simulated.activation_bytes[0] + static.total_bytes - static.workspace_bytes)
"""
CAPTURED = """
import sys
from mindswap.steps.compiled import capture_config
from mindswap.config.source import load_document
from mindswap.config.step_settings import read_step_settings
document = load_document(sys.argv[1])
step = capture_config(sys.argv[1], document, read_step_settings(document), 6, 1000, False)
print(step.sample.layer_map)
print(sorted(int(name.split(".")[2]) for name in step.graph.frozen if name.endswith("wq.weight")))
print(sorted({node.layer_index for node in step.graph.backward if node.op == "MatMul"}, key=str))
"""


def lora_file(folder: Path, pet: dict[str, object] | None = None, steps: int = 1, **model: object) -> Path:
    config = yaml.safe_load(CASE.read_text())
    config["swap_config"], config["recompute_config"] = {"swap": False}, {"recompute": False}
    config["runner_config"].update(batch_size=2, gradient_accumulation_steps=steps)
    config["model"]["model_config"].update(
        {**SMALL, "compute_dtype": "bfloat16", "param_init_type": "float16", **model}
    )
    config["model"]["model_config"]["pet_config"] = {**LORA, **(pet or {})}
    path = folder / "lora.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize(("steps", "recorded_mib"), [(1, 637), (4, 755)], ids=["one micro-batch", "accumulated"])
def test_memory_of_a_lora_is_that_of_its_dry_run(tmp_path, steps, recorded_mib):
    """Data parallel 8: states and sums of 32 small matrices, not of 71 weights; masks of Dropout are bits."""
    output = run(["-c", SIMULATED, lora_file(tmp_path, steps=steps)], check=True).stdout
    explained, note, simulated = output.splitlines()[-3:]
    assert explained == note
    assert note.startswith("32 of 71 weights are trained")
    assert 0.99 <= int(simulated) / 2**20 / recorded_mib <= 1.01


def test_layers_frozen_by_their_number_are_compiled_as_in_the_model(tmp_path):
    """Of six layers 4 and 5 are trained: nothing of backward is below layer 4, and 5 has another gradient than 4."""
    names = [f"*layers.{index}.*" for index in range(6)]
    path = lora_file(tmp_path, {"freeze_include": names[:4], "freeze_exclude": names[4:]}, num_layers=6)
    layer_map, frozen, computed = run(["-c", CAPTURED, path], check=True).stdout.splitlines()[-3:]
    first_trained = eval(layer_map)[4]
    assert len(set(eval(layer_map)[:4])) < 4  # fewer are compiled
    assert eval(frozen) == list(range(first_trained))
    assert set(eval(computed)) == {first_trained, first_trained + 1, None}
