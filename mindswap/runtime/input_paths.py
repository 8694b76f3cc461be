"""Input files that a configuration names: data, and settings of the model and of MindSpore."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

SPEED_UP = "parallel_speed_up_json_path"
PATH_KEYS = ("dataset_dir", "dataset_files", "pretrained_model_dir", SPEED_UP)


def has_dataset(config: Mapping[str, Any]) -> bool:
    """Return whether the configuration has data: an existing MindRecord, or a loader of another type."""
    loader = _loader(config)
    if loader.get("type", "MindDataset") != "MindDataset":
        return True
    names = loader.get("dataset_dir") or loader.get("dataset_files") or ""
    paths = names if isinstance(names, list) else [names]
    return all(isinstance(path, str) and path and Path(path).exists() for path in paths)


def _loader(config: Mapping[str, Any]) -> Mapping[str, Any]:
    dataset = config.get("train_dataset")
    loader = dataset.get("data_loader") if isinstance(dataset, dict) else None
    return loader if isinstance(loader, dict) else {}


def with_absolute_paths(value: Any, home: Path, is_path: bool = False) -> Any:
    """Return the configuration with absolute paths of its input files, if they exist relative to `home`."""
    if isinstance(value, dict):
        return {key: with_absolute_paths(item, home, key in PATH_KEYS) for key, item in value.items()}
    if isinstance(value, list):
        return [with_absolute_paths(item, home, is_path) for item in value]
    exists = is_path and isinstance(value, str) and value and (home / value).exists()
    return str(home / value) if exists else value
