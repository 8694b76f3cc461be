"""Trainings for real, each in a process of its own: with the plugin, without it, and where it must stop."""

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapters.training import (
    ATTENTION_SWAP,
    NUM_STEPS,
    PLAIN,
    SCRIPT,
    SMALL,
    Training,
    run_python,
    train,
    write_config,
)

pytestmark = pytest.mark.mindspore

WITH_PLUGIN = ("-m", "mindswap", "run", str(SCRIPT))
UPSTREAM_SCRIPT = Path(os.environ.get("MINDFORMERS_HOME", "/nonexistent")) / "run_mindformer.py"

SWAP_AND_RECOMPUTE = {
    "swap_config": {
        "swap": True,
        "op_swap": [
            {"op_name": "attention", "backward_prefetch": 20, "layers": [0, 1]},
            {"op_name": r"feed_forward\.w.", "backward_prefetch": 15, "layers": [1]},
        ],
    },
    "recompute_config": {"recompute": False, "select_recompute": {"feed_forward": [0]}},
}
# Worked out from the specification: recompute before swap, all matches, a dot before one-part patterns.
SET_LINES = [
    "Set select recompute at layer 0: feed_forward",
    "Set op_swap at layer 0: .attention, value=20",
    "Set op_swap at layer 1: .attention, value=20, "
    "feed_forward.w1, value=15, feed_forward.w2, value=15, feed_forward.w3, value=15",
]
# Recompute as MindFormers reads it without swap: numbers of layers per stage, a list of names, an exclude.
STAGE_COUNTS = {
    "recompute": [1],
    "select_recompute": [r"feed_forward\.mul"],
    "select_recompute_exclude": [r"feed_forward\.w1\.activation\.silu"],
}
BROKEN_SWAP = {
    "layer_swap": [{"backward_prefetch": True}, 7],
    "op_swap": [{"op_name": "(", "backward_prefetch": -1, "layers": "x"}],
    "no_such_key": 1,
}
CPU_NOTE = "mindswap: the CPU backend cannot execute lazy_inline, so nothing is offloaded in this run; "


def trained(run: Training) -> Training:
    assert run.exit_code == 0, run.log[-3000:]
    assert len(run.losses) == NUM_STEPS
    return run


def stopped(run: Training) -> Training:
    """It stopped before any training, with a message and not with a traceback."""
    assert run.exit_code == 1, run.log[-3000:]
    assert run.losses == [] and run.set_lines == []
    assert "Traceback" not in run.log and "a bug" not in run.log, run.log[-3000:]
    return run


def recomputed_layers(run: Training) -> list[int]:
    scopes = [run.attributes[f"cell network.model.layers.{layer}"]["scope"] or "" for layer in (0, 1)]
    return [layer for layer, scope in enumerate(scopes) if scope.startswith("recompute_")]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tmp_path_factory.mktemp("trainings")


# The package's own entry.


@pytest.fixture(scope="module")
def swap_on(base, data):
    return trained(train(base / "on", write_config(base / "on", {**SMALL, **SWAP_AND_RECOMPUTE}), data))


@pytest.fixture(scope="module")
def swap_off_by_option(base, data):
    """Swap on in the file and off on the command line; what is off may be as wrong as it likes."""
    edits = {**SMALL, **SWAP_AND_RECOMPUTE, "swap_config": {"swap": True, **BROKEN_SWAP}}
    config = write_config(base / "off", edits)
    options = ("--swap_config.swap", "False", "--recompute_config.select_recompute", "False")
    return trained(train(base / "off", config, data, *options, fork=True))


def test_the_loss_falls(swap_on):
    losses = [float(loss) for loss in swap_on.losses]
    assert losses[0] == pytest.approx(5.56, abs=0.1)  # ln(260) = 5.56: at first every token is equally likely
    assert losses[-1] < losses[0] - 1


def test_the_log_has_the_lines_of_the_specification(swap_on):
    assert swap_on.set_lines == SET_LINES


def test_the_lines_come_through_the_logger_of_mindformers(swap_on):
    (line,) = (line for line in swap_on.log.splitlines() if line.endswith(SET_LINES[0]))
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ - mindformers\S*\[.*apply\.py:\d+\] - INFO - Set ", line)


def test_on_cpu_it_says_once_that_nothing_is_offloaded(swap_on):
    assert len([message for message in swap_on.messages if message.startswith(CPU_NOTE)]) == 1
    assert "Offload does not take effect" not in swap_on.log


def test_a_command_line_option_switches_swap_off(swap_off_by_option):
    assert swap_off_by_option.set_lines == []


def test_swap_and_recompute_change_no_loss_and_no_weight(swap_on, swap_off_by_option):
    assert swap_on.losses == swap_off_by_option.losses
    assert swap_on.weights == swap_off_by_option.weights


# The user's own script, as it is. Without mindswap, and with it.


@pytest.fixture(scope="module")
def plain_config(base):
    edits = {**PLAIN, "swap_config": {"swap": False}, "recompute_config": STAGE_COUNTS}
    return write_config(base / "plain_config", edits)


@pytest.fixture(scope="module")
def without_plugin(base, data, plain_config):
    run = trained(train(base / "without", plain_config, data, start=(str(SCRIPT),)))
    assert "mindswap is not there" in run.log
    return run


@pytest.fixture(scope="module")
def with_plugin(base, data, plain_config):
    run = trained(train(base / "with", plain_config, data, start=WITH_PLUGIN))
    assert "mindswap is there" in run.log
    return run


def test_with_swap_off_nothing_differs_from_a_run_without_the_plugin(without_plugin, with_plugin):
    assert with_plugin.losses == without_plugin.losses
    assert with_plugin.weights == without_plugin.weights
    assert with_plugin.attributes == without_plugin.attributes
    assert with_plugin.set_lines == without_plugin.set_lines


def test_with_swap_off_mindformers_does_its_own_recompute(with_plugin):
    """`recompute: [1]` is a number of layers here: layer 0."""
    assert recomputed_layers(with_plugin) == [0]


@pytest.fixture(scope="module")
def plain_swap_on(base, data):
    edits = {**PLAIN, "swap_config": ATTENTION_SWAP, "recompute_config": {"recompute": [1]}}
    return trained(train(base / "plain_on", write_config(base / "plain_on", edits), data, start=WITH_PLUGIN, fork=True))


def test_swap_in_the_users_own_script_changes_no_loss_and_no_weight(without_plugin, plain_swap_on):
    assert plain_swap_on.losses == without_plugin.losses
    assert plain_swap_on.weights == without_plugin.weights


def test_attributes_are_set_before_the_first_compile(plain_swap_on):
    """Swap: the primitives of attention and of its cells, in both layers. Recompute: layer 1, an index now."""
    assert recomputed_layers(plain_swap_on) == [1]
    offload = {
        name.removeprefix("primitive network."): values["backward_prefetch"]
        for name, values in plain_swap_on.attributes.items()
        if values.get("offload") == "True"
    }
    assert set(offload.values()) == {"20"}
    for layer in (0, 1):
        assert f"model.layers.{layer}.attention.wq.matmul" in offload
        assert f"model.layers.{layer}.attention.softmax" in offload
    assert [name for name in offload if not re.match(r"model\.layers\.[01]\.attention\.", name)] == []


# Upstream's script.


@pytest.mark.skipif(not UPSTREAM_SCRIPT.is_file(), reason="MINDFORMERS_HOME names no checkout of MindFormers")
def test_run_mindformer_of_upstream_works_unmodified(base, data, swap_on):
    config = write_config(base / "upstream", {**SMALL, **SWAP_AND_RECOMPUTE})
    start = ("-m", "mindswap", "run", str(UPSTREAM_SCRIPT))
    run = trained(train(base / "upstream", config, data, start=start))
    assert run.set_lines == SET_LINES
    assert (run.losses, run.weights) == (swap_on.losses, swap_on.weights)


# Where it must stop.


def test_problems_come_with_their_places_before_anything_is_built(tmp_path, data):
    config = write_config(tmp_path, SMALL)
    lines = config.read_text().splitlines()
    start = lines.index("swap_config:")
    config.write_text(
        "\n".join(
            [
                *lines[:start],
                "swap_config:",
                "  swap: True",
                "  op_swap:",
                "  - {op_name: attention, backward_prefetch: 0, layers: [0]}",
                "  - {op_name: 'attention\\.wz', backward_prefetch: 1, layers: [0, 7]}",
                "  layer_swp: []",
                *lines[start + 3 :],
                "",
            ]
        )
    )
    run = stopped(train(tmp_path, config, data, fork=True))
    errors = [line for line in run.log.splitlines() if ": error: " in line]
    assert [re.match(r"(.*): error: .*\[([a-z-]+)\]$", line).groups() for line in errors] == [
        (f"{config}:{start + 4}:45", "bad-prefetch"),
        (f"{config}:{start + 5}:15", "unmatched-pattern"),
        (f"{config}:{start + 5}:66", "layer-out-of-range"),
        (f"{config}:{start + 6}:3", "unknown-key"),
    ]
    assert "Build Net For Train" not in run.log


def test_a_problem_that_comes_from_the_command_line_says_so(base, data, tmp_path):
    config = write_config(tmp_path, SMALL)
    run = stopped(train(tmp_path, config, data, "--swap_config.default_prefetch", "0", fork=True))
    assert "command line: error: swap_config.default_prefetch: 0 is out of range [bad-prefetch]" in run.log


def test_an_operator_that_only_the_real_network_knows_is_missed_when_it_is_built(tmp_path, data):
    """No table has this model, so the check before the build says nothing."""
    swap = {"swap": True, "op_swap": [{"op_name": r"attention\.wz", "backward_prefetch": 1, "layers": [0]}]}
    config = write_config(tmp_path, {**PLAIN, "model.arch.type": "OwnLlama", "swap_config": swap})
    run = stopped(train(tmp_path, config, data, start=WITH_PLUGIN, fork=True))
    assert "Build Net For Train" in run.log
    assert r"'attention\.wz' matches no operator in layer 0 of the real network [unmatched-pattern]" in run.log
    assert r"closest: 'attention\.wq'" in run.log


def test_what_mindformers_cannot_train_is_its_own_error(tmp_path, data):
    """The traceback of the training stays, and it is no bug of mindswap."""
    config = write_config(tmp_path, SMALL)
    run = train(tmp_path, config, data, "--optimizer.type", "NoSuchOptimizer", fork=True)
    assert run.exit_code == 1
    assert "Traceback" in run.log and "NoSuchOptimizer" in run.log and "a bug" not in run.log


@pytest.mark.parametrize(("ending", "exit_code"), [("raise ValueError('own failure')", 1), ("raise SystemExit(2)", 2)])
def test_the_end_of_a_script_is_the_end_of_the_run(tmp_path, ending, exit_code):
    (tmp_path / "script.py").write_text(f"import sys\nprint(sys.argv)\n{ending}\n")
    (tmp_path / "x.yaml").write_text("seed: 0\n")
    words = ("script.py", "--config", "x.yaml", "--name", "two words")
    run = run_python(tmp_path, "-m", "mindswap", "run", *words, fork=True)
    assert run.exit_code == exit_code
    assert str(list(words)) in run.log
    assert "a bug" not in run.log
    assert ("Traceback" in run.log and "ValueError: own failure" in run.log) == (exit_code == 1)


# Paths on which MindFormers loads or compiles early.


def test_the_policy_is_set_before_a_checkpoint_is_loaded(base, data, swap_on, tmp_path):
    (saved,) = (swap_on.folder / "output" / "checkpoint" / "rank_0").glob("*.safetensors")
    checkpoint = shutil.copy(saved, tmp_path / "llama.safetensors")
    config = write_config(tmp_path, {**SMALL, **SWAP_AND_RECOMPUTE})
    options = ("--load_checkpoint", str(checkpoint), "--load_ckpt_format", "safetensors")
    run = trained(train(tmp_path, config, data, *options, fork=True))
    assert run.set_lines == SET_LINES
    assert run.messages.index(SET_LINES[-1]) < run.messages.index("......Start load checkpoint from safetensors......")
    assert float(run.losses[0]) < float(swap_on.losses[0]) - 1  # it goes on where the first run ended


def test_the_policy_is_set_before_only_save_strategy_ends_the_run(data, tmp_path):
    config = write_config(tmp_path, {**SMALL, **SWAP_AND_RECOMPUTE})
    run = train(tmp_path, config, data, "--only_save_strategy", "True", fork=True)
    assert (run.exit_code, run.set_lines, run.losses) == (0, SET_LINES, [])
    (end,) = (message for message in run.messages if message.endswith("system exit! "))
    assert run.messages.index(SET_LINES[-1]) < run.messages.index(end)


def test_the_policy_is_set_before_an_early_compile(data, tmp_path):
    """Semi-auto parallel with only_save_strategy compiles before training; CPU gets as far as the attempt."""
    edits = {
        **PLAIN, **SWAP_AND_RECOMPUTE, "only_save_strategy": True, "use_parallel": True,
        "parallel.parallel_mode": 1, "parallel.full_batch": True, "parallel_config.data_parallel": 1,
        "runner_config.sink_mode": True,
    }  # fmt: skip
    config = write_config(tmp_path, edits)
    run = train_as_one_of_a_cluster(tmp_path, config, data)
    assert run.set_lines == SET_LINES
    assert "in transform_and_load_checkpoint" in run.log and "in compile_model" in run.log, run.log[-3000:]
    assert run.log.index(SET_LINES[-1]) < run.log.index("in compile_model")
    assert run.losses == []


def train_as_one_of_a_cluster(folder, config, data) -> Training:
    """The only worker of a cluster, with its scheduler: msrun makes no cluster for one worker."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {
        **os.environ, "MS_WORKER_NUM": "1", "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": str(port),
        "RANK_SIZE": "1", "RANK_ID": "0", "DEVICE_ID": "0", "MS_NODE_ID": "0", "MSRUN_CPU_LIST": "[0]",
    }  # fmt: skip
    start = "import mindspore; mindspore.set_context(device_target='CPU'); mindspore.communication.init()"
    arguments = ["--config", str(config), "--run_mode", "train", "--train_dataset_dir", str(data)]
    scheduler = subprocess.Popen(
        [sys.executable, "-c", start], cwd=folder, env={**environ, "MS_ROLE": "MS_SCHED"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        result = subprocess.run(
            [sys.executable, *WITH_PLUGIN, *arguments, "--output_dir", str(folder / "output")],
            cwd=folder, env={**environ, "MS_ROLE": "MS_WORKER"}, timeout=1200, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
    finally:
        scheduler.kill()
        scheduler.wait()
    return Training(folder, result.returncode, result.stdout)


def test_a_script_that_never_builds_a_context_is_stopped(base, data):
    """MindFormers would run its own swap handling, which swaps nothing."""
    folder = base / "no_context"
    config = write_config(folder, {**SMALL, **SWAP_AND_RECOMPUTE})
    script = folder / "script.py"
    script.write_text(
        "import sys\n"
        "from mindformers import MindFormerConfig, Trainer\n"
        "config = MindFormerConfig(sys.argv[sys.argv.index('--config') + 1], run_mode='train')\n"
        "config.train_dataset.data_loader.dataset_dir = sys.argv[sys.argv.index('--train_dataset_dir') + 1]\n"
        "Trainer(config).train()\n"
    )
    run = train(folder, config, data, start=("-m", "mindswap", "run", str(script)), fork=True)
    assert run.exit_code == 1 and run.losses == []
    assert "call build_context(config) first" in run.log, run.log[-3000:]


def test_a_script_imports_what_is_beside_it_as_python_would(tmp_path):
    """As a checkout of MindFormers is beside its run_mindformer.py."""
    installed = importlib.util.find_spec("mindformers").submodule_search_locations[0]
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "mindformers").symlink_to(installed)
    (checkout / "own.py").write_text("where = __file__")
    script = checkout / "script.py"
    script.write_text("import sys, mindformers, own\nprint(sys.path[0], mindformers.__file__, own.where, sys.argv)\n")
    config = write_config(tmp_path, {**SMALL, **SWAP_AND_RECOMPUTE})
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "mindswap", "run", "checkout/script.py", "--config", str(config)],
        cwd=tmp_path, timeout=600, check=True, capture_output=True, text=True,
    )  # fmt: skip
    words = ["checkout/script.py", "--config", str(config)]
    assert ran.stdout.splitlines()[-1] == f"{checkout} {checkout}/mindformers/__init__.py {checkout}/own.py {words}"
