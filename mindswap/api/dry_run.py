"""A training of a configuration on MindSpore's Ascend backend, without a card."""

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mindswap.adapters.mindrecord import SYNTHETIC_NAME, write_synthetic_data
from mindswap.check.check import check_document, policy_of
from mindswap.config.nodes import Document
from mindswap.config.step import read_step_settings
from mindswap.errors import LaunchError
from mindswap.files import made_once, write_new
from mindswap.graph.cache import cache_folder, make_key
from mindswap.training.data.samples import data_columns, vocabulary_size
from mindswap.training.measure.config import (
    RunOptions,
    SyntheticData,
    format_config,
    run_config,
    with_absolute_paths,
)
from mindswap.training.measure.on_backend import INLINE_FAULT, run_rank
from mindswap.training.measure.pool import DryRun

CONFIG_NAME = "dryrun.yaml"
SPEED_UP = "parallel_speed_up_json_path"


def dry_run(
    document: Document,
    rank: int,
    folder: Path,
    kept: Sequence[int] | None = None,
    say: Callable[[str], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    home: Path | None = None,
) -> DryRun:
    """Compile and "run" one step of a training as on an Ascend card: memory, order and copies are real, times are not.

    Args:
        document: a configuration.
        rank: whose memory.
        folder: for all that the dry run writes.
        kept: layers of the whole model that those of a short one stand for; None for the whole model.
        say: takes a line about what is done.
        stop: whether to end it now.
        home: where relative paths of the configuration begin; None for the current folder.

    Raises:
        PolicyError: the configuration is wrong.
        LaunchError: the dry run cannot start, or failed.
    """
    num_ranks = 1 if document.value("use_parallel") is False else read_step_settings(document).num_cards
    if not 0 <= rank < num_ranks:
        raise LaunchError(f"rank {rank}: the configuration has ranks 0 to {num_ranks - 1}")
    folder.mkdir(parents=True, exist_ok=True)
    file = write_dry_run_config(document, folder, num_ranks, kept, home or Path.cwd())

    def tell(line: str) -> None:
        say(f"rank {rank}: {line}")

    try:
        return run_rank(file, folder / f"rank_{rank}", rank, num_ranks, tell, stop)
    except LaunchError as error:
        if INLINE_FAULT not in str(error):
            raise
    tell("MindSpore does not build it with inlined conditionals; again with switch_inline:False")
    again = folder / f"rank_{rank}_not_inlined"
    return run_rank(file, again, rank, num_ranks, tell, stop, is_inlined=False)


def write_dry_run_config(
    document: Document, folder: Path, num_ranks: int, kept: Sequence[int] | None, home: Path
) -> Path:
    """The configuration of the dry run: one step, data made on the spot, nothing saved, perhaps fewer layers.

    Raises:
        PolicyError: the configuration is wrong.
        LaunchError: it does not say what data must be like.
    """
    checked = check_document(document)
    policy = policy_of(document, checked)
    wanted = RunOptions(1, num_ranks, None if kept is None else len(kept), None, is_profiled=False)
    own = with_absolute_paths(document.data(), home)
    config, changes = run_config(own, policy, wanted, kept, _samples)
    _for_ascend(config, folder)
    header = "Made by mindswap dryrun; changed there:\n" + "\n".join(changes)
    path = folder / CONFIG_NAME
    write_new(path, format_config(config, header), overwrite=True)
    return path


def _samples(document: Document) -> SyntheticData:
    """Kept, as what writes them takes five seconds to start."""
    settings, columns = read_step_settings(document), data_columns(document)
    num_samples = settings.num_tokens // settings.seq_length
    key = make_key(
        seq_length=settings.seq_length, num_samples=num_samples, size=vocabulary_size(document), columns=columns
    )
    kept = made_once(cache_folder() / "samples" / key, lambda folder: write_synthetic_data(folder, document, 1))
    return SyntheticData(str(kept / SYNTHETIC_NAME), columns)


def _for_ascend(config: dict[str, Any], folder: Path) -> None:
    """Settings that a dry run needs otherwise than a training."""
    context = config["context"] = dict(config.get("context") or {})
    context["device_target"] = "Ascend"
    # MindSpore refuses `dataset_broadcast_opt_level` without sink mode.
    context.pop("dataset_broadcast_opt_level", None)
    ascend = context.get("ascend_config")
    if isinstance(ascend, dict) and isinstance(path := ascend.get(SPEED_UP), str) and Path(path).is_file():
        with contextlib.suppress(ValueError), Path(path).open("rb") as file:  # MindSpore says what is wrong with it
            settings = {key: value for key, value in json.load(file).items() if key != "dataset_broadcast_opt_level"}
            write_new(folder / "parallel_speed_up.json", json.dumps(settings), overwrite=True)
            context["ascend_config"] = {**ascend, SPEED_UP: str(folder.absolute() / "parallel_speed_up.json")}
    config["runner_config"]["sink_mode"] = False
    config["train_dataset"]["num_parallel_workers"] = 1
    config["callbacks"] = [each for each in config["callbacks"] if each["type"] != "StepReport"]
    schedule = config.get("lr_schedule")
    if isinstance(schedule, dict) and schedule.get("warmup_steps") is schedule.get("warmup_ratio") is None:
        config["lr_schedule"] = {**schedule, "warmup_steps": 0}  # MindFormers refuses a file without
    if isinstance(config.get("mindswap"), dict):
        config["mindswap"] = {key: value for key, value in config["mindswap"].items() if key != "cpu_stand_ins"}
