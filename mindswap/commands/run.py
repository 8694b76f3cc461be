r"""Train with the plugin on: put `mindswap run` in front of run_mindformer.py.

examples:
  mindswap run run_mindformer.py --config llama2_7b.yaml --run_mode train
  mindswap run --config llama2_7b.yaml --run_mode train --use_parallel False
  msrun --worker_num=8 --local_worker_num=8 python -m mindswap run --config llama2_7b.yaml --run_mode train
  scripts/msrun_launch.sh "run_mindformer.py --config llama2_7b.yaml --run_mode train --use_parallel True"
  mindswap run --adaptive-memory-optimization --memory 54GiB -- msrun --worker_num=8 --local_worker_num=8 \
      --log_dir=output/msrun python -m mindswap run --config llama2_7b.yaml --run_mode train --use_parallel True

With --adaptive-memory-optimization mindswap plans swap and recompute for the memory there is, watches the training,
and plans again when memory runs out or is left over. Its options: --memory auto|54GiB, --max-restarts 8,
--measured-steps 10, --run-dir DIR, --replace (plan instead of the swap and recompute in the YAML).
Without a script the package's own entry runs; it takes the training options of run_mindformer.py.

options:
  [SCRIPT.py] OPTIONS
"""

import argparse
import gc
import os
import runpy
import sys
import traceback
from pathlib import Path

from mindswap.check.doctor.software import count_cards, has_cards, require_mindformers
from mindswap.config.nodes import Document
from mindswap.config.step import ASCEND, is_on_cpu, read_device_target
from mindswap.errors import LaunchError, MindswapError
from mindswap.training.launch.processes import hold_lifeline
from mindswap.training.launch.training import ADAPTIVE_FLAG, find_option, load_trainable, parse_training

ARGUMENTS = {
    "[SCRIPT.py] OPTIONS": {"dest": "arguments", "nargs": argparse.REMAINDER},
}
USAGE = "mindswap run [SCRIPT.py] --config CONFIG [OPTIONS of run_mindformer.py]"


def run(args: argparse.Namespace) -> int:
    """Run the training; its own failures show as they are, with its own traceback."""
    words = [word for i, word in enumerate(args.arguments) if not (i == 0 and word == "--")]
    if ADAPTIVE_FLAG in words:
        from mindswap.commands.adaptive import run_adaptive, split_words

        return run_adaptive(*split_words(words))
    hold_lifeline(os.environ)
    training = parse_training(words)
    script, options = training.script, training.options
    _refuse_true_in_options(options)
    document = load_trainable(training.config_path)
    require_mindformers()
    _quiet_cpu(document)
    gc.disable()  # a quarter of the time of importing MindFormers, as in `adapters.quiet`
    try:
        from mindswap.adapters.plugin import install
    finally:
        gc.enable()
    gc.freeze()  # what was imported stays: the collector need not walk over it before each compile
    session = install(document)
    try:
        if script:
            _run_script(script, options)
        else:
            from mindswap.adapters.entry import train

            train(options)
        session.finish()
    except MindswapError:
        raise
    except Exception:  # noqa: BLE001 the training's own failure, not ours
        traceback.print_exc()
        if hint := hint_after_failure(document, options):
            print(f"mindswap: {hint}", file=sys.stderr)
        return 1
    return 0


# What a Llama needs to train on a CPU; configs/llama2_7b/cpu says why.
ON_CPU = {
    ("mindswap", "cpu_stand_ins"): True,
    ("model", "model_config", "use_rope_slice"): True,
    ("model", "model_config", "fused_rms_norm"): False,
}


def _refuse_true_in_options(options: list[str]) -> None:
    """MindFormers reads `--options swap_config.swap=True` as False, without a word."""
    for word in options:
        key, _, value = word.partition("=")
        if key.split(".")[0] in ("swap_config", "recompute_config") and value.lower() == "true":
            raise LaunchError(f"--options {word}: MindFormers reads True as False there\n    fix: --{key} True")


def _quiet_cpu(document: Document) -> None:
    """On CPU the compiler warns of every operator that it does not offload; mindswap says it once."""
    if is_on_cpu(document):
        os.environ.setdefault("MS_SUBMODULE_LOG_v", "{PARALLEL:3}")


def hint_after_failure(document: Document, options: list[str]) -> str:
    """Advice after a failed training on a CPU, or where no Ascend card seems to be; "" if that is no reason."""
    if _target(document, options) == "CPU":
        nodes = {path: document.get(*path) for path in ON_CPU}
        missing = [path for path, value in ON_CPU.items() if (node := nodes[path]) is None or node.value is not value]
        keys = ", ".join(f"{'.'.join(path)}: {ON_CPU[path]}" for path in missing)
        return f"a CPU has no kernels for much of a network\n    fix: {keys}; as configs/llama2_7b/cpu" if keys else ""
    return cards_missing(document, options)


def _target(document: Document, options: list[str]) -> str:
    return find_option(options, "--device_target") or read_device_target(document)


def cards_missing(document: Document, options: list[str]) -> str:
    """Message that no Ascend card is here, for a training that is for Ascend; "" where that is no reason to stop."""
    if _target(document, options) != ASCEND or has_cards() or count_cards():
        return ""
    return (
        "no Ascend card was found here (no npu-smi, no /dev/davinci*), and the training is for Ascend\n"
        "    fix: train where the cards are; to try mindswap on a CPU: configs/llama2_7b/cpu; "
        "mindswap verify, simulate and plan need no card"
    )


def _run_script(script: Path, options: list[str]) -> None:
    sys.argv = [str(script), *options]
    sys.path.insert(0, str(script.resolve().parent))
    runpy.run_path(str(script), run_name="__main__")
