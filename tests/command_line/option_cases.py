"""Command lines that use every option of every command, on real models: `test_every_option` runs them.

Words in braces are fields of `Model`, and files that `test_every_option.prepared` makes: `{out}` is a new folder,
`{copy}` a copy of the configuration in it, `{trace}` a step that `mindswap trace` recorded.
"""

from dataclasses import dataclass, field
from pathlib import Path

from mindswap.simulator.cost.hardware import OPTIONS

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Model:
    """A configuration that compiles on a CPU in seconds, and names in its layers."""

    file: Path
    swap: str  # an operator or cell whose output backward holds
    cell: str  # a cell that can be recomputed, without that operator
    keep: str  # a cell of which nothing else is asked
    edits: dict[str, object] = field(default_factory=dict)  # of the file


DATA = ROOT / "tests" / "data"
# Activations of the newer models are less than what the optimizer needs; with more samples they are not, which takes a
# minute more to compile for experts.
LARGER = {"runner_config.batch_size": 8, "model.model_config.seq_length": 512}
ATTENTION = r"self_attention\.core_attention"
NORMS = ("pre_mlp_layernorm", "input_layernorm")
MODELS = {
    "llama": Model(
        ROOT / "mindswap" / "data" / "example" / "llama2_small.yaml", r"attention\.flash_attention", "feed_forward",
        "ffn_norm",
    ),
    "qwen3": Model(DATA / "qwen3_small.yaml", ATTENTION, *NORMS, LARGER),
    "qwen3_moe": Model(DATA / "qwen3_moe_small.yaml", ATTENTION, *NORMS),
    "deepseek": Model(DATA / "deepseek_v3_small.yaml", ATTENTION, *NORMS),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A command line."""

    words: str
    models: tuple[str, ...] = tuple(MODELS)
    codes: tuple[int, ...] = (0,)
    needs_mindspore: bool = True  # to capture the step of a model, for example
    writes: tuple[str, ...] = ()  # files and folders in `{out}`
    is_apart: bool = False  # in a process of its own, as it compiles: MindFormers builds one family of models in each


# Each figure of the device with the value that `--help` shows for it, but for sizes, of which that is 54GiB for all.
SIZES = {
    "usable_memory": "58GiB", "device_memory": "64GiB", "host_memory": "1024GiB", "cache_size": "192MiB",
    "hccl_buffer": "200MiB", "kernel_workspace": "32MiB", "pool_alignment": "512B",
}  # fmt: skip
FIGURES = " ".join(
    f"--{name.replace('_', '-')} {SIZES.get(name, figure.kind.example)}"
    for name, figure in OPTIONS.items()
    if name != "memory"
)
DEVICE = f"--device generic {FIGURES}"

EITHER = (0, 1)  # whether it fits, or whether a machine is ready, hangs on more than the command
OF_4_LAYERS = ("llama", "qwen3")
PURE = {"needs_mindspore": False}
MEGATRON_BLOCK = (
    "convert --from megatron {config} --recompute-granularity full --recompute-method block "
    "--recompute-num-layers 1 --pipeline-model-parallel-size 2"
)
CASES = (
    Case("check {config}", **PURE),
    Case("check --json --num-layers 4 --table --ignore overlap --pretrained_model_dir {folder} {config}", **PURE),
    Case("check {config} {copy}", **PURE),
    Case("explain {config}", **PURE),
    Case("explain --paths --num-layers 4 --pretrained_model_dir {folder} {config}", **PURE),
    Case("explain --json {config}", **PURE),
    Case("doctor --json --pretrained_model_dir {folder} {config}", codes=EITHER, **PURE),
    Case("doctor", codes=EITHER, models=("llama",), **PURE),
    # -- simulated steps ---------------------------------------------------------------------------
    Case(
        "simulate {config} --trace {out}/t.json --insight {out}/step --html {out}/p.html --figures --expert-skew 1 "
        f"--memory 40GiB --pretrained_model_dir {{folder}} {DEVICE}",
        writes=("t.json", "step", "p.html"),
    ),
    Case("simulate --json {config} --memory {tight}", codes=EITHER),
    Case("simulate --json {config} --expert-skew 2", ("qwen3_moe",), is_apart=True),
    Case(
        "compare {config} {copy} none full-recompute default-swap select-recompute --plot {out}/c.png --expert-skew 1 "
        f"--memory 40GiB --pretrained_model_dir {{folder}} {DEVICE}",
        writes=("c.png",),
    ),
    Case("compare --json {config} none"),
    Case("simulate {trace} --no-cache", ("llama",)),
    Case("compare {trace} none --no-cache", ("llama",), EITHER),
    Case(
        "inspect {trace} --layers 0,2-3 --by cell --plot {out}/i.png --pretrained_model_dir {folder}", ("llama",),
        writes=("i.png",),
    ),
    Case("inspect {trace} --by layer", ("llama",)),
    Case("inspect {trace} --by operator", ("llama",)),
    Case("check --network {config}", ("llama",), is_apart=True),
    # -- plans -------------------------------------------------------------------------------------
    Case("plan {config} --memory {tight} --pin {swap}=swap --json", codes=EITHER),
    Case(
        "plan {config} --memory {tight} --pin {swap}=swap:3 --pin {cell}=recompute --pin {keep}=keep --explain "
        "--html {out}/p.html --pretrained_model_dir {folder} -o {out}/p.yaml --no-verify",
        codes=EITHER,
    ),
    Case("plan {copy} --memory {tight} --allow recompute --objective memory --in-place --no-verify --json"),
    Case("plan {config} --memory {tight} --allow swap --simple --overwrite -o {copy} --no-verify", codes=EITHER),
    Case(f"plan {{config}} --objective time --expert-skew 1 --memory 40GiB {DEVICE}"),
    Case("plan {trace} --no-cache --verbose --memory 1GiB", ("llama",)),
    Case("verify {config} --brief --rank 0 --json --pretrained_model_dir {folder}", ("llama",), is_apart=True),
    # -- conversions -------------------------------------------------------------------------------
    Case("convert {config} --to 2.x --ops-per-layer 50 --pretrained_model_dir {folder} -o {out}/c.yaml", **PURE),
    Case("convert {copy} --to 2.x --in-place --json", **PURE),
    Case("convert {counts} --to index --overwrite -o {copy}", **PURE),
    Case("convert {of_2x} --to 1.9", **PURE),
    Case("convert {config} --to 2.x --trace {trace}", ("llama",)),
    Case("convert --from megatron {config} --recompute-activations --backward-prefetch 2", **PURE),
    Case("convert --from megatron {config} --from-args {script}", **PURE),
    Case("convert --from megatron --family llama --num-layers 8 --recompute-activations", ("llama",), **PURE),
    Case(
        "convert --from megatron --family qwen3 --num-layers 8 --recompute-granularity selective "
        "--recompute-modules core_attn mlp",
        ("qwen3",),
        **PURE,
    ),
    Case(
        "convert --from megatron --family qwen3_moe --num-layers 8 --moe-zero-memory level0", ("qwen3_moe",), **PURE
    ),
    Case(
        "convert --from megatron --family deepseek3 --num-layers 8 --recompute-mla-up-proj", ("deepseek",), **PURE
    ),
    Case(
        "convert --from megatron {config} --fine-grained-activation-offloading --offload-modules attn_norm core_attn",
        **PURE,
    ),
    Case(
        f"{MEGATRON_BLOCK} --tensor-model-parallel-size 2 --sequence-parallel "
        "--num-layers-per-virtual-pipeline-stage 1",
        OF_4_LAYERS,
        **PURE,
    ),
    Case(f"{MEGATRON_BLOCK} --num-virtual-stages-per-pipeline-rank 2", OF_4_LAYERS, **PURE),
    Case(
        f"{MEGATRON_BLOCK} --decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 3",
        OF_4_LAYERS,
        **PURE,
    ),
    Case(
        "convert --from megatron --num-layers 6 --recompute-granularity full --recompute-method block "
        "--pipeline-model-parallel-size 2 --account-for-embedding-in-pipeline-split "
        "--account-for-loss-in-pipeline-split",
        ("llama",),
        **PURE,
    ),
    Case(
        "convert --from megatron {config} --recompute-granularity full --recompute-method uniform "
        "--tensor-model-parallel-size 2 --distribute-saved-activations",
        ("llama",),  # MindFormers refuses it for newer models
        **PURE,
    ),
    # Places that only models of two layers have.
    Case(f"{MEGATRON_BLOCK} --pipeline-model-parallel-layout Et|tL", codes=EITHER, **PURE),
    Case(f"{MEGATRON_BLOCK} --num-layer-list 1,1 --recompute-in-advance", codes=EITHER, **PURE),
    Case(f"{MEGATRON_BLOCK} --schedules-method dualpipev --noop-layers 2,3", codes=EITHER, **PURE),
    # Options of MindSpeed; experts and MLA are not in each model.
    Case(
        "convert --from megatron {config} --swap-attention --swap-modules self_attention --recompute-num-layers 1 "
        "--swap-optimizer --swap-optimizer-times 4",
        **PURE,
    ),
    Case(
        "convert --from megatron {config} --recompute-activation-function --recompute-activation-function-num-layers 1 "
        "--recompute-norm --recompute-norm-num-layers 1 --enable-recompute-layers-per-pp-rank",
        **PURE,
    ),
    Case(
        "convert --from megatron {config} --recompute-mla-up-proj --mla-swap-core-attn-out --moe-zero-memory level1 "
        "--moe-zero-memory-num-layers 1",
        codes=EITHER,
        **PURE,
    ),
    # -- commands without a model ------------------------------------------------------------------
    Case("calibrate {profile} -o {out}/d.yaml --device generic", ("llama",), writes=("d.yaml",), **PURE),
    Case("calibrate {profile} -o {copy} --overwrite --json", ("llama",), **PURE),
    Case("status {run_dir}", ("llama",), **PURE),
    Case("status --json {run_dir}", ("llama",), **PURE),
    Case("example {out}/trial", ("llama",), writes=("trial",), **PURE),
    Case(
        "prepare-data {text} -o {out}/x.mindrecord --seq-length 16 --newer-model --json", ("llama",),
        writes=("x.mindrecord", "x.mindrecord.db"), is_apart=True,
    ),
    Case(
        "prepare-data {text} -o {out}/z.mindrecord --seq-length 16 --tokenizer {tokenizer} --eos-token </s>",
        ("llama",), writes=("z.mindrecord",), is_apart=True,
    ),
    Case("prepare-data {text} -o {out}/y.mindrecord --seq-length 16 --overwrite", ("llama",), is_apart=True),
)  # fmt: skip

# Records the step that cases have as `{trace}`, once.
TRACE = Case("trace {config} -o {out}/step.json --overwrite --json --pretrained_model_dir {folder}", ("llama",))

# Without a card, on MindSpore's Ascend backend.
DRY_RUN = Case(
    "dryrun {config} --layers 1 --ranks 0 --jobs 2 --against none --keep {out}/kept --insight {out}/step "
    "--snapshot {out}/m.pickle --plot {out}/d.png --html {out}/d.html --memory 40GiB --pretrained_model_dir {folder} "
    f"{DEVICE}",
    ("llama",),
    writes=("kept", "step", "m.pickle", "d.png", "d.html"),
    is_apart=True,
)

# What it asks of the other commands is in `test_prove`; the figures are words of `simulate` and `plan`.
PROOF = Case(
    "prove {config} --no-profile --synthetic-data --deterministic --overwrite --json --pretrained_model_dir {folder} "
    f"{DEVICE}",
    ("llama",),
)

# Options of the commands on all models that one model has, as it says the same of any.
ONE_MODEL = (
    "check --network",  # builds it
    "simulate --no-cache",
    "compare --no-cache",
    "plan --no-cache --verbose",  # of a recorded step, which compiles nothing
    "convert --trace --distribute-saved-activations",
    "convert --family=llama --family=qwen3 --recompute-modules",  # instead of a model
    "convert --family=qwen3_moe --family=deepseek3",
    # Layers on stages: models of 4 layers have two of each.
    "convert --sequence-parallel --num-layers-per-virtual-pipeline-stage --num-virtual-stages-per-pipeline-rank",
    "convert --tensor-model-parallel-size",
    "convert --decoder-first-pipeline-num-layers --decoder-last-pipeline-num-layers",
    "convert --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
)

# Options whose command takes long, and the test that runs them: its file has the words of the option.
PROVE, RAY = "tests/features/prove/test_cli.py::", "tests/runtime/attempt/test_ray.py::"
BATCHES, SPREAD = "tests/features/plan/test_batches_cli.py::", "tests/features/plan/test_worker_pool.py::"
SUPERVISE = "tests/runtime/attempt/test_supervise.py::"
REAL_PROOF = f"{PROVE}test_a_proof_on_cpu_runs_for_real_and_says_what_it_cannot_show"
A_NODE_IS_LOST = f"{RAY}test_a_lost_node_is_named_and_a_spare_one_takes_its_place"
ELSEWHERE = {
    "dryrun --cards": "tests/features/dryrun/test_trainer_on_backend.py::test_layers_are_on_a_straight_line",
    "dryrun --full --json": "tests/features/dryrun/test_on_backend.py::test_the_backend_needs_what_is_simulated",
    "inspect --no-cache --json": "tests/features/inspect/test_cli.py::test_the_second_time_nothing_is_compiled",
    "inspect --rank": "tests/features/inspect/test_rank.py::test_a_stage_has_its_layers_and_only_the_last_has_the_loss",
    "verify --no-cache": "tests/features/verify/test_faults.py::test_the_exit_code_says_that_something_is_not_as_asked",
    "verify --cards": "tests/features/verify/test_trainer_verify.py::test_cells_are_copied_out_and_back_and_recomputed",
    "verify --log": "tests/features/verify/test_log.py::test_logs_that_agree",
    "plan --trace": "tests/features/trace/test_cli.py::test_a_2x_file_is_planned_with_it",
    "plan --strategy=auto --cards --dry-run": (
        f"{BATCHES}test_each_strategy_has_its_row_and_the_fastest_is_dry_run_and_written"
    ),
    "plan --batch-size --micro-batches --any-global-batch": (
        f"{BATCHES}test_each_batch_has_its_plan_and_the_fastest_is_written"
    ),
    "plan --stages=auto": f"{BATCHES}test_stages_get_other_numbers_of_layers_and_the_fastest_is_written",
    "plan --sweep --plot": "tests/features/plan/test_cli.py::test_a_sweep_is_a_falling_curve",
    "plan --jobs": f"{SPREAD}test_a_search_over_processes_gives_what_one_gives",
    "plan --ray": f"{SPREAD}test_a_search_over_nodes_of_which_one_is_killed_gives_what_one_gives",
    "prove --layers --steps --worker-num --variants --output --memory": REAL_PROOF,
    "prove --ray --nodes": f"{RAY}test_a_proof_trains_on_two_nodes_without_a_shared_disk",
    "adaptive --memory --run-dir --measured-steps --adaptive-memory-optimization": (
        "tests/runtime/attempt/test_training.py::test_one_process_killed_goes_on_from_its_checkpoint"
    ),
    "adaptive --max-restarts": f"{SUPERVISE}test_kills_without_end_are_given_up",
    "adaptive --replace": f"{SUPERVISE}test_swap_set_by_hand_is_refused_and_replaced_on_demand",
    "adaptive --ray --nodes --spare": A_NODE_IS_LOST,
}
