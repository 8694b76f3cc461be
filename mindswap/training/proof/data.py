"""The data of a proof: the user's where it is there, else a MindRecord made on the spot."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

PATH_KEYS = ("dataset_dir", "dataset_files", "pretrained_model_dir")


def has_own_data(config: Mapping[str, Any]) -> bool:
    """The configuration names a MindRecord that is there, or a loader of another kind, which is left to itself."""
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


def with_absolute_paths(value: Any) -> Any:
    """The configuration with paths of data that hold from any folder; those that are not there stay."""
    if isinstance(value, dict):
        return {key: _absolute(item) if key in PATH_KEYS else with_absolute_paths(item) for key, item in value.items()}
    return [with_absolute_paths(item) for item in value] if isinstance(value, list) else value


def _absolute(value: Any) -> Any:
    if isinstance(value, list):
        return [_absolute(item) for item in value]
    return str(Path(value).absolute()) if isinstance(value, str) and value and Path(value).exists() else value
