"""Command line of `mindswap run`."""

import argparse
import atexit
import sys
import traceback

from mindswap.errors import MindswapError
from mindswap.features.run import hint_after_failure, prepare_training
from mindswap.runtime.crashes import END
from mindswap.runtime.training_command import ADAPTIVE_FLAG
from mindswap.system.streams import print_text

EPILOG = """\
examples:
  mindswap run run_mindformer.py --config llama2_7b.yaml --run_mode train
  mindswap run --config llama2_7b.yaml --run_mode train --use_parallel False
  msrun --worker_num=8 --local_worker_num=8 python -m mindswap run --config llama2_7b.yaml --run_mode train
  scripts/msrun_launch.sh "run_mindformer.py --config llama2_7b.yaml --run_mode train --use_parallel True"
  mindswap run --adaptive-memory-optimization --memory 54GiB -- msrun --worker_num=8 --local_worker_num=8 \\
      --log_dir=output/msrun python -m mindswap run --config llama2_7b.yaml --run_mode train --use_parallel True

With --adaptive-memory-optimization mindswap plans swap and recompute for the available memory, watches the training,
and replans when memory runs out or is unused. Its options: --memory auto|54GiB, --max-restarts 8,
--measured-steps 10, --run-dir DIR, --replace (plan instead of the swap and recompute in the YAML).
MINDSWAP=1 in the environment does the same for an unchanged command: MINDSWAP=1 python run_mindformer.py --config ...
Without a script the package's own entry runs; it takes the training options of run_mindformer.py.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument("arguments", metavar="[SCRIPT.py] OPTIONS", nargs=argparse.REMAINDER)


USAGE = "mindswap run [SCRIPT.py] --config CONFIG [OPTIONS of run_mindformer.py]"


def run(args: argparse.Namespace) -> int:
    """Run the training; its exceptions are printed with their traceback."""
    words = [word for i, word in enumerate(args.arguments) if not (i == 0 and word == "--")]
    if ADAPTIVE_FLAG in words:
        from mindswap.features.run.adaptive_options import run_adaptive, split_words

        return run_adaptive(*split_words(words))
    training = prepare_training(words)
    try:
        training.run()
    except MindswapError:
        raise
    except SystemExit as end:
        if not end.code:
            _log_end()
        raise
    except Exception:  # noqa: BLE001 the training's own failure, not ours
        traceback.print_exc()
        if hint := hint_after_failure(training.document, training.options):
            print_text(f"mindswap: {hint}", is_message=True)
        return 1
    _log_end()
    return 0


def _log_end() -> None:
    """Print at the end of this process that the training is over.

    The interpreter has then joined all threads, one of which may write a checkpoint, and MindSpore, which registered
    earlier, is still to be unloaded.
    """
    atexit.register(sys.stderr.write, f"{END}\n")  # stdout is the script's
