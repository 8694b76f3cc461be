"""Every number of a configuration that is out of range comes with what to write instead."""

import re

import pytest

from mindswap.rules.checker import check_document, check_pynative
from tests.builders import document

# A file of each version with every number that a rule looks at, all of them right.
V1 = r"""
use_parallel: True
parallel: {parallel_mode: 1, enable_parallel_optimizer: True,
  parallel_optimizer_config: {optimizer_weight_shard_size: 2, parallel_optimizer_threshold: 64}}
parallel_config: {data_parallel: 2, model_parallel: 2, pipeline_stage: 2, micro_batch_num: 4, context_parallel: 1}
model: {model_config: {num_layers: 8, offset: [0, 0], pp_interleave_num: 1, batch_size: 1, seq_length: 128}}
recompute_config: {recompute: [1, 2], select_recompute: {'feed_forward\.mul': [1, 1]}}
swap_config: {swap: SWAP, default_prefetch: 10, layer_swap: [{backward_prefetch: 20, layers: [0, '3-4']}],
  op_swap: [{op_name: attention, backward_prefetch: 5, layers: [1]}]}
"""
V2 = """
model: {num_hidden_layers: 8, num_nextn_predict_layers: 1}
parallelism: {data_parallel: 2, tensor_parallel: 2, pipeline_parallel: 1}
swap: {enable: True, default_prefetch: 1, layer_swap: [{layers: [0, '2-3']}], op_swap: [{op_name: mlp, layers: [5]}]}
recompute: {mode: select, select_module: {mlp: [1]}, full_recompute_layer: [7], exclude_op: {mlp: [7]}}
"""
CASES = {
    "1.9": (check_document, V1.replace("SWAP", "True")),
    "1.9, swap off": (check_document, V1.replace("SWAP", "False")),
    "2.x": (check_pynative, V2),
}


def changed(text):
    """The text with each number in turn out of range in some way, and what was changed."""
    for match in re.finditer(r"(?<=[ \[])(\d+|'\d-\d')(?=[,}\]])", text):
        is_range = match.group().startswith("'")
        for value in (
            ("'4-3'", "'-1-4'", "'3-99'", "'1-999999999999'") if is_range else (-1, -100, 0, 99, 10**12, "'-2'", "'99'")
        ):
            yield (
                f"{text[max(match.start() - 30, 0) : match.start()]}{value}",
                (f"{text[: match.start()]}{value}{text[match.end() :]}"),
            )


@pytest.mark.parametrize("name", CASES)
def test_a_number_out_of_range_has_a_fix(name):
    check, text = CASES[name]
    found = [(where, problem) for where, wrong in changed(text) for problem in check(document(wrong)).problems]
    assert len(found) > 30
    assert [(where, problem.rule, problem.message) for where, problem in found if not problem.fix] == []


@pytest.mark.parametrize(
    ("offset", "stages", "more", "fix"),
    [
        ("[1, 0]", 2, "", "offset: [0, 0]"),
        ("0", 3, "", "offset: [1, 1, 0]"),
        ("[0, 0]", 3, "", "offset: [1, 1, 0]"),
        ("[1, 0, 0]", 3, "pp_interleave_num: 2, ", "offset: [[1, 1, 0], [0, 0, 0]]"),
        ("0", 9, "", "fewer stages or chunks: 8 layers have to do for all of them"),
    ],
)
def test_an_offset_that_fits_is_named(offset, stages, more, fix):
    """8 layers: 3 stages leave 2, 3 stages of 2 chunks leave 2 as well. What is named is taken."""

    def problems(given):
        return check_document(document(
            f"parallel_config: {{pipeline_stage: {stages}}}\n"
            "parallel: {pipeline_config: {pipeline_interleave: True}}\n"
            f"model: {{model_config: {{num_layers: 8, {more}offset: {given}}}}}"
        )).problems  # fmt: skip

    (problem,) = problems(offset)
    assert (problem.rule, problem.fix) == ("stage-recompute", fix)
    if fix.startswith("offset: "):
        assert problems(fix.removeprefix("offset: ")) == ()


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("4-3", "'3-4'"), ("-1-4", "'0-4'"), ("3 - -2", "'0-3'"), ("1-9999999", "'1-7'"),
        ("-9--3", "delete it; the last layer is 7"), ("8888888-9999999", "delete it; the last layer is 7"), ("x", ""),
        ("-2", "6"), (" 5 ", "5"), ("3.0", "3"), ("-9", "delete it; the last layer is 7"),
        ("8", "delete it; the last layer is 7"),
    ],
)  # fmt: skip
def test_the_layers_that_were_meant(text, fix):
    swap = f"swap_config: {{swap: True, layer_swap: [{{backward_prefetch: 1, layers: ['{text}']}}]}}"
    (problem,) = check_document(document(f"model: {{model_config: {{num_layers: 8}}}}\n{swap}")).errors
    assert (problem.rule, problem.fix) == ("wrong-type", fix)
