"""Training entry for users of the MindFormers wheel, which does not contain `run_mindformer.py`.

It accepts the training options of that script and runs MindFormers' own Trainer.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import mindformers.core.context
from mindformers.tools.register import ActionDict, MindFormerConfig
from mindformers.tools.utils import parse_value, str2bool, str2bool_or_str
from mindformers.trainer import Trainer
from mindspore.common.initializer import Initializer

from mindswap.adapters.versions import set_output_path
from mindswap.errors import LaunchError
from mindswap.files import package_data
from mindswap.rules.refusals import TRAIN_MODES

# option -> name of its type, key path in the configuration
OPTIONS = package_data("run/options.json")
DRY_RUN_HOST_BYTES = 2**44
MIN_SKIPPED_BYTES = 2**20
TYPES = {"int": int, "str": str, "str2bool": str2bool, "str2bool_or_str": str2bool_or_str}


def train(argv: list[str]) -> None:
    """Train as the options and the YAML specify.

    Args:
        argv: options of `run_mindformer.py`; any key of the YAML can be set with `--section.key value`.

    Raises:
        LaunchError: if an option is wrong, or the run mode is not a training.
    """
    args, overrides = _parser().parse_known_args(argv)
    if args.register_path:
        os.environ["REGISTER_PATH"] = str(Path(args.register_path).resolve())
        sys.path.append(os.environ["REGISTER_PATH"])
    config_path = str(Path(args.config).resolve())
    config = MindFormerConfig(config_path, run_mode=args.run_mode) if args.run_mode else MindFormerConfig(config_path)
    for option, (_, key_path) in OPTIONS.items():
        value = getattr(args, option)
        if value is not None:
            _set(config, key_path, value)
    if args.options:
        config.merge_from_dict(args.options)
    for key_path, value in _pairs(overrides):
        _set(config, key_path, parse_value(value))
    if config.run_mode not in TRAIN_MODES:
        raise LaunchError(f"run_mode is {config.run_mode!r}; `mindswap run` trains: --run_mode train or finetune")
    if os.environ.get("MS_SIMULATION_LEVEL"):
        from mindspore._c_expression import OffloadContext  # private, and not needed by a training

        # Nothing is copied, so the host memory of this machine must not limit swaps; pin_mem_pool.cc would limit them.
        OffloadContext.get_instance().set_offload_cpu_size(DRY_RUN_HOST_BYTES)
        _skip_initialization()
    set_output_path(config.output_dir)
    mindformers.core.context.build_context(config)
    trainer = Trainer(config)
    trainer.train()


def _skip_initialization() -> None:
    """Leave large parameters as they are allocated: a dry run reads no values, and random ones take a fifth of it."""
    initialize = Initializer.__call__

    def initialize_small(self: Initializer, array: Any) -> Any:
        return initialize(self, array) if array.nbytes < MIN_SKIPPED_BYTES else None

    Initializer.__call__ = initialize_small


class _Options(argparse.ArgumentParser):
    """Parser that raises LaunchError for wrong options; exit codes are those of the training."""

    def error(self, message: str) -> NoReturn:
        raise LaunchError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Options(prog="mindswap run", allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--register_path")
    parser.add_argument("--options", nargs="+", action=ActionDict)
    for option, (kind, _) in OPTIONS.items():
        parser.add_argument(f"--{option}", type=TYPES[kind])
    return parser


def _pairs(words: list[str]):
    """Yield `--a.b value` and `--a.b=value` as pairs."""
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    if len(words) % 2:
        raise LaunchError(f"option without a value: {' '.join(words)}")
    for key, value in zip(words[::2], words[1::2], strict=True):
        if not key.startswith("--"):
            raise LaunchError(f"unknown argument {key!r}; a key of the YAML is given as --section.key value")
        yield key[2:], value


def _set(config, key_path: str, value) -> None:
    *parents, last = key_path.split(".")
    for name in parents:
        if not isinstance(config.get(name), dict):
            raise LaunchError(f"--{key_path}: the configuration has no section {name!r}")
        config = config[name]
    config[last] = value
