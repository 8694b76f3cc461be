r"""What MindFormers' own swap handling gets wrong, and mindswap gets right on real networks.

The lines of facts-mindformers.md section 4 that need a network; those that concern the policy alone are in
tests/policy/test_facts.py, those that need a training in test_training.py.
"""

import pytest

from tests.adapters.graphs import CASES, CPU_CASES, QWEN3, compile_jobs, expected, job, layer_swap, op_swap, pairs_of
from tests.adapters.test_cases import CPU_FEED_FORWARD, CPU_FLASH, FLASH, QWEN_FLASH

pytestmark = pytest.mark.mindspore

CPU_CASE = CPU_CASES / "case1_default_swap.yaml"
ASCEND_CASE = CASES / "case1_default_swap.yaml"
ONE_LAYER = {"model.model_config.num_layers": 1}
TWO_LAYERS = {"model.model_config.num_layers": 2}
SWAP_OFF = {"swap_config": {"swap": False}}
# A list of layers with swap on, a number of layers of each stage with swap off.
W1_OF_LAYER_0 = {"select_recompute": {r"feed_forward\.w1": [0]}}
W1_OF_ONE_LAYER = {"select_recompute": {r"feed_forward\.w1": [1]}}


def set_lines(result):
    return [line for line in result["lines"] if line.startswith("Set ")]


# "With gradient accumulation 1 and pipeline 1, MindFormers 1.9.0 forces lazy_inline off, whatever the YAML says; then
# no MoveTo is inserted. ENABLE_LAZY_INLINE_NO_PIPELINE appears in no file" (and is not set here).


@pytest.fixture(scope="module")
def ascend(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ascend")
    plain_attention = {**TWO_LAYERS, "model.model_config.use_flash_attention": False}
    jobs = {
        "hook for Ascend": job(ASCEND_CASE, folder, ONE_LAYER, how="in training", device_target="Ascend"),
        "hook for CPU": job(ASCEND_CASE, folder, ONE_LAYER, how="in training", device_target="CPU"),
        "MindFormers alone": job(ASCEND_CASE, folder, ONE_LAYER, how="without plugin", compiles=False),
        "select recompute": job(
            ASCEND_CASE,
            folder,
            {**plain_attention, "swap_config": op_swap(("feed_forward", 5, [1])), "recompute_config": W1_OF_LAYER_0},
        ),
        "select recompute of MindFormers": job(
            ASCEND_CASE,
            folder,
            {**plain_attention, **SWAP_OFF, "recompute_config": W1_OF_ONE_LAYER},
        ),
    }
    return dict(zip(jobs, compile_jobs(list(jobs.values())), strict=True))


def test_lazy_inline_is_on_for_ascend_with_gradient_accumulation_1_and_no_pipeline(ascend):
    result = ascend["hook for Ascend"]
    assert result["has_lazy_inline"] and result["is_split"]
    assert pairs_of(result) == expected(((0,), 10, FLASH))


def test_mindformers_alone_leaves_lazy_inline_off(ascend):
    """So it is the hook that switches it on."""
    assert not ascend["MindFormers alone"]["has_lazy_inline"]


def test_without_lazy_inline_the_same_attributes_swap_nothing(ascend):
    result = ascend["hook for CPU"]
    assert result["offload"] == ascend["hook for Ascend"]["offload"] != {}
    assert not result["has_lazy_inline"] and not result["is_split"]
    assert result["num_copies_out"] == 0 and result["pairs"] == []


# "For the newer models the YAML swap_config is dropped silently, default_prefetch too, and the default pattern
# matches nothing."


def test_the_hook_honours_swap_config_of_the_newer_models(tmp_path):
    edits = {"model.model_config.num_hidden_layers": 2}
    (result,) = compile_jobs([job(QWEN3, tmp_path, edits, how="in training", device_target="Ascend")])
    assert set_lines(result) == [
        f"Set op_swap at layer {layer}: self_attention.core_attention.flash_attention, value=10" for layer in range(2)
    ]
    assert pairs_of(result) == expected((range(2), 10, QWEN_FLASH))


# "Log lines differ from the specification: two spaces in Set op_swap, 29 or 33 spaces inside Set layer swap. When a
# last-level pattern matches several names only the last is logged." "Crashes: `.*` or `feed_forward\..*`."


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    swaps = {
        "layers": layer_swap((20, [0])),
        "star": op_swap((".*", 20, [0])),
        "feed_forward": op_swap(("feed_forward", 15, [0])),
        "feed_forward star": op_swap((r"feed_forward\..*", 15, [0])),
    }
    jobs = {name: job(CPU_CASE, folder, {**ONE_LAYER, "swap_config": swap}) for name, swap in swaps.items()}
    jobs |= {
        f"set {name}": job(CPU_CASE, folder, {**ONE_LAYER, "swap_config": swap}, how="in training", compiles=False)
        for name, swap in swaps.items()
    }
    recompute = {
        "exclude": {
            "select_recompute": {"feed_forward": True},
            "select_recompute_exclude": {r"feed_forward\.mul": [1]},
        },
        "exclude from full": {"recompute": True, "select_recompute_exclude": {r"feed_forward\.w1": [1]}},
        "recompute and swap": {"select_recompute": {r"feed_forward\.w1": [0]}},
    }
    for name, section in recompute.items():
        swap = op_swap((r"attention\.flash_attention", 10, [0]), (r"feed_forward\.w1", 10, [0]))
        num_layers = ONE_LAYER if name == "recompute and swap" else TWO_LAYERS
        edits = {**num_layers, "swap_config": swap, "recompute_config": section}
        jobs[name] = job(CPU_CASE, folder, edits)
    return dict(zip(jobs, compile_jobs(list(jobs.values())), strict=True))


def test_a_layer_swap_line_has_single_spaces(llama):
    assert set_lines(llama["set layers"]) == ["Set layer swap at layer 0 and value is: 20"]


def test_an_op_swap_line_has_single_spaces_and_every_match(llama):
    """Primitives first, in the order in which the cell defines them, then cells."""
    (line,) = set_lines(llama["set feed_forward star"])
    start = "Set op_swap at layer 0: "
    assert line.startswith(start) and "  " not in line
    names = [entry.removesuffix(", value=15") for entry in line.removeprefix(start).split(", feed_forward.")]
    assert names[0].startswith("feed_forward.")
    matched = {names[0].removeprefix("feed_forward."), *names[1:]}
    assert {"mul", "w1", "w2", "w3"} <= matched


def test_star_swaps_the_whole_layer(llama):
    assert pairs_of(llama["star"]) == pairs_of(llama["layers"])
    assert sum(pairs_of(llama["star"]).values()) == 17  # the operators of case 2, for one layer
    assert llama["set star"]["offload"] == llama["set layers"]["offload"]


def test_star_below_a_cell_swaps_all_of_the_cell(llama):
    assert pairs_of(llama["feed_forward star"]) == pairs_of(llama["feed_forward"])
    assert pairs_of(llama["feed_forward"]) == expected(((0,), 15, CPU_FEED_FORWARD))


# "Silent: recompute and swap on the same operator below the matched level." The rule of the specification holds in
# the graph: recompute wins.


def test_an_operator_that_is_recomputed_is_not_swapped(llama):
    assert pairs_of(llama["recompute and swap"]) == expected(((0,), 10, CPU_FLASH))


# "With swap on, select_recompute_exclude reaches no layer although the log says excludes have the highest priority."


def recomputed(graph, layer):
    """(cell, primitive) of what backward runs again."""
    return {(cell, op) for index, cell, op in graph["recomputed"] if index == layer}


def test_select_recompute_exclude_reaches_the_layer(llama):
    assert ("feed_forward", "Mul") in recomputed(llama["exclude"], 0)
    assert ("feed_forward", "Mul") not in recomputed(llama["exclude"], 1)
    assert ("feed_forward.w1.activation", "SiLU") in recomputed(llama["exclude"], 1)


def test_select_recompute_exclude_goes_before_full_recompute(llama):
    assert ("feed_forward.w1", "MatMul") in recomputed(llama["exclude from full"], 0)
    assert ("feed_forward.w1", "MatMul") not in recomputed(llama["exclude from full"], 1)
    assert ("feed_forward.w3", "MatMul") in recomputed(llama["exclude from full"], 1)


# "Any truthy select_recompute on the legacy Llama without flash attention recomputes 7 attention primitives in every
# layer."


def test_select_recompute_without_flash_attention_recomputes_only_what_it_names(ascend):
    graph = ascend["select recompute"]
    # Of w1, what silu reads runs again; its output is the output of the recomputed cell, which is kept.
    assert {(layer, cell) for layer, cell, _ in graph["recomputed"] if "norm" not in cell} == {(0, "feed_forward.w1")}


def test_mindformers_alone_recomputes_attention_too(ascend):
    """What the test above would see otherwise."""
    graph = ascend["select recompute of MindFormers"]
    assert {(0, "attention"), (1, "attention")} <= {(layer, cell) for layer, cell, _ in graph["recomputed"]}


# "1.5 to 1.7 skip pipeline_stage and comm fusion when swap is on." Not 1.9.0, and not with mindswap.


def test_pipeline_stages_are_set_with_swap_on_as_with_swap_off(tmp_path):
    edits = {"parallel_config.pipeline_stage": 2, "parallel_config.micro_batch_num": 2, "use_parallel": False}
    jobs = [
        job(CPU_CASE, tmp_path, edits, how="set"),
        job(CPU_CASE, tmp_path, {**edits, **SWAP_OFF}, how="without plugin", compiles=False),
    ]
    on, off = compile_jobs(jobs)
    assert on["pipeline_stages"] == off["pipeline_stages"] == [0, 0, 1, 1]
    assert set(on["offload"].values()) == {10} and off["offload"] == {}
