"""The folder of one attempt: the plan, the configuration that the workers read, links to the checkpoint."""

import itertools
import json
from pathlib import Path

from mindswap.config.parse import parse_document
from mindswap.config.source import BASE_CONFIG
from mindswap.errors import LaunchError
from mindswap.training.adaptive.checkpoints import Checkpoint, CheckpointFolder, link_checkpoint
from mindswap.training.launch.msrun import RUN_DIR_BYTES, describe_full


def attempt_folder(run_dir: Path, number: int) -> Path:
    """Where an attempt keeps its files and logs."""
    return run_dir / f"attempt_{number}"


def prepare_attempt(
    folder: Path, yaml_text: str, config_path: Path, checkpoint: Checkpoint | None, *, is_parallel: bool
) -> Path:
    """Write what the workers of an attempt read; a folder of this name is put aside.

    Args:
        folder: of the attempt.
        yaml_text, config_path: the planned configuration, and the user's file which it came from.
        checkpoint: what to start from; None for the beginning.
        is_parallel: several processes, as MindFormers sees it.

    Returns:
        The configuration of the attempt: the planned one, and above it where to start from.

    Raises:
        LaunchError: the folder cannot be written.
    """
    try:
        if folder.exists():
            others = (folder.with_name(f"{folder.name}.old{number}") for number in itertools.count(1))
            folder.rename(next(other for other in others if not other.exists()))
        folder.mkdir(parents=True)
        plan = folder / "plan.yaml"
        plan.write_text(with_absolute_bases(yaml_text, config_path.parent), encoding="utf-8", newline="")
        if checkpoint is None:
            return plan.absolute()
        resume = (folder / "resume").absolute()
        resumed = {
            BASE_CONFIG: plan.name,
            "load_checkpoint": str(resume),
            "resume_training": link_checkpoint(checkpoint, resume, is_parallel=is_parallel),
            "load_ckpt_format": checkpoint.format,
        }
        config = folder / "config.yaml"
        config.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in resumed.items()), encoding="utf-8")
    except OSError as error:
        raise LaunchError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return config.absolute()


def full_disks(checkpoints: CheckpointFolder, run_dir: Path) -> tuple[str, ...]:
    """Folders in which there is no room for one more checkpoint, or for a run; one line for each file system."""
    newest = checkpoints.newest()
    size_bytes = sum(path.stat().st_size for path in newest.files) if newest else RUN_DIR_BYTES
    by_disk = {path.stat().st_dev: path for path in reversed(checkpoints.folders()) if path.exists()}
    lines = [describe_full(path, size_bytes, "a checkpoint") for path in by_disk.values()]
    return tuple(line for line in (*lines, describe_full(run_dir, RUN_DIR_BYTES, "a run")) if line)


def with_absolute_bases(text: str, folder: Path) -> str:
    """The configuration with paths of `base_config` that hold from any folder."""
    root = parse_document(text, "config").span if BASE_CONFIG in text else None
    for key, value in reversed((root.entries or []) if root else []):
        if key.text == BASE_CONFIG:
            for span in reversed(value.items if value.items is not None else [value]):
                path = json.dumps(str((folder / span.text).absolute()))
                text = text[: span.start] + path + text[span.end :]
    return text
