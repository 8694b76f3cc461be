"""Steps that MindSpore compiled, in `tests/data/steps` so that tests need none: captured as `mindswap` caches them.

- sequences: four Llama layers, of which three were compiled; tensor, sequence and context parallel;
- experts: four layers of DeepSeek-V3 with experts over ranks, of which three were compiled.

What tests expect of them is in `tests/data/steps/recorded.json`, as it was when it was written: whether it is right is
asked elsewhere, by hand and of the compiler. After a change that was meant, see what it does to the figures:
`python -m tests.recorded_steps` writes them anew.
"""

import functools
import gzip
import importlib
import json
from pathlib import Path
from typing import Any

from mindswap.graph.capture_cache import from_plain
from mindswap.simulator.captured_step import CapturedStep
from mindswap.steps.compiled import STEP_CLASSES

FOLDER = Path(__file__).resolve().parent / "data" / "steps"
NAMES = ("sequences", "experts")
# Modules with `FACTS`: name -> what makes facts of a captured step, as JSON has them.
MODULES = (
    "tests.simulator.test_recorded_steps", "tests.graph.test_recorded_graphs",
    "tests.graph.passes.test_recorded_rewrites", "tests.graph.sharding.test_recorded_gathers",
    "tests.graph.analysis.test_recorded_effects",
)  # fmt: skip


@functools.cache
def captured(name: str) -> CapturedStep:
    """A step."""
    text = gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes())
    step = from_plain(json.loads(text), {cls.__name__: cls for cls in STEP_CLASSES})
    assert isinstance(step, CapturedStep)
    return step


@functools.cache
def recorded() -> Any:
    """What was expected: by module, fact and step."""
    return json.loads((FOLDER / "recorded.json").read_text("utf-8"))


if __name__ == "__main__":
    found = {
        module: {
            fact: {name: make(captured(name)) for name in NAMES}
            for fact, make in importlib.import_module(module).FACTS.items()
        }
        for module in MODULES
    }
    (FOLDER / "recorded.json").write_text(json.dumps(found, indent=1, default=str) + "\n", "utf-8")
