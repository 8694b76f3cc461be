"""`mindswap run`: train with the plugin on, through a given script or the package's own entry."""

import argparse
import os
import runpy
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from mindswap.adapters.installed import require_mindformers
from mindswap.errors import LaunchError, MindswapError, PolicyError
from mindswap.policy.problem import Level
from mindswap.policy.pynative.form import refuse_pynative
from mindswap.policy.yaml_source import load_document

HELP = "Train with the plugin on: put `mindswap run` in front of run_mindformer.py."
EXAMPLES = """\
  mindswap run run_mindformer.py --config llama2_7b.yaml --run_mode train
  mindswap run --config llama2_7b.yaml --run_mode train --use_parallel False
  msrun --worker_num=8 --local_worker_num=8 python -m mindswap run --config llama2_7b.yaml --run_mode train
  scripts/msrun_launch.sh "run_mindformer.py --config llama2_7b.yaml --run_mode train --use_parallel True"
  mindswap run --adaptive-memory-optimization --memory 54GiB -- msrun --worker_num=8 --local_worker_num=8 \\
      --log_dir=output/msrun python -m mindswap run --config llama2_7b.yaml --run_mode train --use_parallel True

With --adaptive-memory-optimization mindswap plans swap and recompute for the memory there is, watches the training,
and plans again when memory runs out or is left over. Its options: --memory auto|54GiB, --max-restarts 8,
--measured-steps 10, --run-dir DIR, --replace (plan instead of the swap and recompute in the YAML).
Without a script the package's own entry runs; it takes the training options of run_mindformer.py.
"""

ADAPTIVE_FLAG = "--adaptive-memory-optimization"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything behind `run` belongs to the training script."""
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="[SCRIPT.py] OPTIONS")
    parser.usage = "mindswap run [SCRIPT.py] --config CONFIG [OPTIONS of run_mindformer.py]"


def run(args: argparse.Namespace) -> int:
    """Run the training; its own failures show as they are, with its own traceback."""
    words = [word for i, word in enumerate(args.arguments) if not (i == 0 and word == "--")]
    if ADAPTIVE_FLAG in words:
        from mindswap.commands.adaptive import run_adaptive

        return run_adaptive(words)
    training = parse_training(words)
    script, options = training.script, training.options
    _refuse_true_in_options(options)
    document = load_document(str(training.config_path))
    if any(problem.level is Level.ERROR for problem in document.problems):
        raise PolicyError(document.problems)
    refuse_pynative(document)
    require_mindformers()
    _quiet_cpu(document)
    from mindswap.adapters.plugin import install

    install(document)
    try:
        if script:
            _run_script(script, options)
        else:
            from mindswap.adapters.entry import train

            train(options)
    except MindswapError:
        raise
    except Exception:  # noqa: BLE001 the training's own failure, not ours
        traceback.print_exc()
        return 1
    return 0


@dataclass(frozen=True)
class Training:
    """What follows `mindswap run`.

    Attributes:
        script: the training script; None for the package's own entry.
        options: its options.
        config_path: the YAML, where the script will look for it.
    """

    script: Path | None
    options: list[str]
    config_path: Path


def parse_training(words: list[str]) -> Training:
    """Read `[SCRIPT.py] --config CONFIG ...`.

    Raises:
        LaunchError: if there is no such script, or no --config.
    """
    script = Path(words[0]) if words and words[0].endswith(".py") else None
    options = words[1:] if script else words
    if script and not script.is_file():
        raise LaunchError(f"no such script: {script}\n    without a script: mindswap run --config ...")
    config_path = _find_config(options)
    if script and not config_path.is_absolute():  # upstream's script reads it beside itself
        config_path = script.resolve().parent / config_path
    return Training(script, options, config_path)


def find_option(options: list[str], name: str) -> str | None:
    """Value of `--name value` or `--name=value` among options; None if it is not there."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(name, dest="value")
    return parser.parse_known_args(options)[0].value


def _find_config(options: list[str]) -> Path:
    config = find_option(options, "--config")
    if config is None:
        raise LaunchError("--config is missing\n    fix: mindswap run --config CONFIG.yaml --run_mode train")
    return Path(config)


def _refuse_true_in_options(options: list[str]) -> None:
    """MindFormers reads `--options swap_config.swap=True` as False, without a word."""
    for word in options:
        key, _, value = word.partition("=")
        if key.split(".")[0] in ("swap_config", "recompute_config") and value.lower() == "true":
            raise LaunchError(f"--options {word}: MindFormers reads True as False there\n    fix: --{key} True")


def _quiet_cpu(document) -> None:
    """On CPU the compiler warns of every operator that it does not offload; mindswap says it once."""
    target = document.get("context", "device_target")
    if target is not None and target.value == "CPU":
        os.environ.setdefault("MS_SUBMODULE_LOG_v", "{PARALLEL:3}")


def _run_script(script: Path, options: list[str]) -> None:
    sys.argv = [str(script), *options]
    sys.path.insert(0, str(script.resolve().parent))
    runpy.run_path(str(script), run_name="__main__")
