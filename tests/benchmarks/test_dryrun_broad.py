"""The broad set of dry runs: what is declared, and what is changed in a file of an older branch."""

import yaml

from benchmarks.dryrun.broad import POLICIES, cut, declared_rows, migrate

FILE = """
context: {ascend_config: {parallel_speed_up_json_path: ./speed_up.json}}
model:
  arch: {type: LlamaForCausalLM, auto_register: llama.LlamaForCausalLM}
  model_config: {num_layers: 80, offset: [0, 1, -1, 0], pp_interleave_num: 2}
optimizer: {type: FP32StateAdamWeightDecay, beta1: 0.9, beta2: 0.95}
parallel_config: {pipeline_stage: 8, micro_batch_num: 128}
recompute_config: {recompute: [10, 9, 9, 9, 9, 9, 9, 9], select_recompute: {"add": [[5, 5, 5, 5, 0, 0, 0, 0], [0, 9]]}}
processor: {type: LlamaProcessor}
runner_config: {gradient_accumulation_steps: 16}
"""


def test_150_rows_or_more_are_declared_with_known_policies():
    rows = list(declared_rows())
    assert len(rows) == len(set(rows)) >= 150
    assert {row.split()[1] for row in rows} == set(POLICIES)


def test_depth_is_cut_and_all_else_stays():
    data = cut(yaml.safe_load(FILE))
    assert data["model"]["model_config"] == {"num_layers": 12, "offset": 0, "pp_interleave_num": 2}
    assert data["parallel_config"] == {"pipeline_stage": 2, "micro_batch_num": 4}
    assert data["recompute_config"] == {"recompute": [3, 3], "select_recompute": {"add": [[3, 3], [0, 3]]}}
    assert data["runner_config"] == {"gradient_accumulation_steps": 4}
    assert data["optimizer"] == yaml.safe_load(FILE)["optimizer"]


def test_what_1_9_no_longer_has_is_replaced():
    data = migrate(yaml.safe_load(FILE))
    assert data["optimizer"] == {"type": "AdamW", "betas": [0.9, 0.95]}
    assert data["model"]["arch"] == {"type": "LlamaForCausalLM"}
    assert "processor" not in data
