"""What recompute and swap make of a step, worked out and compiled; a model put together and compiled whole.

Masks and rotary tables, which all layers share, are kept once in the steps that are worked out; MindSpore computes
them again in each recomputed layer (`SHARED`). Those are small operators; no byte of a layer differs.
"""

import json
from collections import Counter
from functools import cache

import pytest
import yaml

from tests import forked
from tests.adapters import rewrite_policies
from tests.adapters.edits import edited
from tests.adapters.graphs import CPU_CASES, QWEN3, ROOT

pytestmark = pytest.mark.mindspore

MIXED = rewrite_policies.MIXED
CASE = CPU_CASES / "case1_default_swap.yaml"
# Kernels that make what layers share, at most so often in a layer: the mask of attention, and tables of rotation. Where
# the halves of a batch go through a layer one after the other, both cast the weights of what runs again.
SHARED = {
    "LLAMA": {"Mul": 1, "Cast": 1},
    "QWEN3": {"Muls": 1, "Cos": 1, "Sin": 1},
    "LLAMA_FLOAT16": {},
    "LLAMA_INTERLEAVED": {"Cast": 4},
    "QWEN3_JOINT": {"Muls": 1, "Cos": 1, "Sin": 1},
}
# Layers that keep different bytes under the policies side by side: what a policy leaves, and what is at the ends.
UNLIKE_LAYERS = {"LLAMA": 4, "LLAMA_FLOAT16": 6, "LLAMA_INTERLEAVED": 5, "QWEN3": 7, "QWEN3_JOINT": 3}
# As on Ascend: computed in float16 from float32 weights, with the kernels of attention and norm.
FLOAT16 = {
    "mindswap": None,
    "model.model_config.compute_dtype": "float16",
    "model.model_config.fused_rms_norm": True,
    "context.device_target": "Ascend",
}


def run(*arguments):
    command = ["-m", "tests.adapters.rewrites", *map(str, arguments)]
    result = forked.run(command, cwd=ROOT)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout)


def write(folder, name, edits, source):
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(edited(yaml.safe_load(source.read_text()), edits)))
    return path


INTERLEAVED = {
    **FLOAT16,
    "model.model_config.fine_grain_interleave": 2,
    "use_parallel": True,
    "parallel_config.model_parallel": 2,
    "parallel_config.data_parallel": 1,
}
# Queries, keys and values of one head side by side, as in TeleChat3.
JOINT = {"model.model_config.use_contiguous_weight_layout_attention": False}

# family -> file, changes, key of the number of layers; more words for the process
FAMILIES = {
    "LLAMA": (CASE, {}, "num_layers", ["assemble"]),
    "LLAMA_FLOAT16": (CASE, FLOAT16, "num_layers", []),
    "QWEN3": (QWEN3, {}, "num_hidden_layers", []),
    "LLAMA_INTERLEAVED": (CASE, INTERLEAVED, "num_layers", []),
    "QWEN3_JOINT": (QWEN3, JOINT, "num_hidden_layers", []),
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """family -> its steps under each policy."""
    folder = tmp_path_factory.mktemp("families")

    @cache
    def of_family(family):
        source, edits, key, more = FAMILIES[family]
        num_layers = {f"model.model_config.{key}": len(rewrite_policies.IN_LAYERS[family])}
        return run(write(folder, family, {**edits, **num_layers}, source), family, *more)

    return of_family


CASES = [(family, name) for family in SHARED for name in rewrite_policies.policies(family)]


@pytest.mark.parametrize(("family", "name"), CASES)
def test_bytes_of_each_layer_are_those_that_are_compiled(compared, family, name):
    result = compared(family)[name]
    assert result["predicted"]["kept"] == result["compiled"]["kept"]
    assert result["predicted"]["copied"] == result["compiled"]["copied"]


@pytest.mark.parametrize(("family", "name"), CASES)
def test_copies_that_never_come_back_are_those_that_are_compiled(compared, family, name):
    """The newer models mark reshapes as recomputed; in the legacy Llama a policy does."""
    result = compared(family)[name]
    assert result["predicted"]["one way"] == result["compiled"]["one way"]


@pytest.mark.parametrize(("family", "name"), CASES)
def test_kernels_that_run_again_are_those_that_are_compiled(compared, family, name):
    compiled, predicted = (Counter(compared(family)[name][which]["again"]) for which in ("compiled", "predicted"))
    assert not predicted - compiled
    assert all(count <= SHARED[family].get(key.split()[1], 0) for key, count in (compiled - predicted).items())


def test_a_reshape_before_one_that_runs_again_is_copied_for_nothing(compared):
    """Outputs of wq and wk; what the two have as input comes back."""
    layer = rewrite_policies.IN_LAYERS["LLAMA_FLOAT16"].index("swap of a reshape before one that runs again")
    one_way = compared("LLAMA_FLOAT16")[MIXED]["compiled"]["one way"]
    assert sum(count for place, count in one_way.items() if place.startswith(f"{layer} ")) == 2


def test_policies_differ_in_what_they_keep(compared):
    """So that the tests above compare something."""
    unlike = {}
    for family, in_layers in rewrite_policies.IN_LAYERS.items():
        kept = compared(family)[MIXED]["compiled"]["kept"]
        unlike[family] = len({kept.get(str(layer), 0) for layer in range(len(in_layers))})
    assert unlike == UNLIKE_LAYERS


@pytest.mark.parametrize("name", rewrite_policies.assembled("LLAMA"))
def test_five_layers_put_together_from_three_are_five_layers(compared, name):
    assembled = compared("LLAMA")["assembled"]
    assert assembled["compiled layers"] == 3
    result = assembled[name]
    assert result["assembled"] == result["complete"]
    if name == "whole layers":  # the mask is made again in each of the five layers
        assert result["compiled"]["operators"] - result["complete"]["operators"] == 2 * 5
        return
    peaks, steps = ([result[form].pop(figure) for form in ("complete", "compiled")] for figure in ("peak", "step"))
    assert result["complete"] == result["compiled"]
    assert steps[0] == pytest.approx(steps[1], rel=0.005)
    if name == "layer swap" and (peaks[0], steps[0]) != (peaks[1], steps[1]):
        pytest.xfail(
            "memory is taken, and copies are waited for, in the order of launch, which differs where layers are put "
            "together; not understood"
        )
    assert (peaks[0], steps[0]) == (peaks[1], steps[1])
