"""The held-out runs of benchmarks/published/held_out.yaml as configurations."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

__all__ = ["HeldOut", "held_out", "write_config"]

FOLDER = Path(__file__).resolve().parent / "published"
BASE = "llama2_7b_ft.yaml"
REPLACED = ("recompute_config",)


@dataclass(frozen=True)
class HeldOut:
    """A run.

    Attributes:
        name: of the run.
        tokens_per_s: published, per card.
        device: what it ran on.
        config: settings of MindFormers.
    """

    name: str
    tokens_per_s: int
    device: str
    config: dict[str, object]


def held_out() -> Iterator[HeldOut]:
    """All of them."""
    base = (FOLDER / BASE).read_text()
    for name, run in yaml.safe_load((FOLDER / "held_out.yaml").read_text()).items():
        config = yaml.safe_load(base)
        settings = run["settings"]
        config["model"]["model_config"] = settings.pop("model_config")
        config["model"]["arch"]["type"] = settings.pop("arch", config["model"]["arch"]["type"])
        for key, value in settings.items():
            config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) and key not in REPLACED else value
        yield HeldOut(name, run["tokens_per_s"], run["device"], config)


def write_config(run: HeldOut, folder: Path) -> Path:
    """Its configuration as a file in a folder."""
    path = folder / f"{run.name}.yaml"
    path.write_text(yaml.safe_dump(run.config, sort_keys=False))
    return path
