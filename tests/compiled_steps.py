"""Steps that MindSpore compiled, in `tests/data/steps` so that tests need none: captured as `mindswap` caches them.

- sequences: four Llama layers, of which three were compiled; tensor, sequence and context parallel;
- experts: four layers of DeepSeek-V3 with experts over ranks, of which three were compiled.
"""

import functools
import gzip
import json
from pathlib import Path

from mindswap.config.pipeline_layout import Pipeline
from mindswap.config.step_settings import StepSettings
from mindswap.config.weight_sharding import WeightSharding
from mindswap.graph.capture_cache import from_plain
from mindswap.simulator.captured_step import CapturedStep
from mindswap.steps.compiled import STEP_CLASSES

FOLDER = Path(__file__).resolve().parent / "data" / "steps"
NAMES = ("sequences", "experts")
# One micro-batch on one pipeline stage, nothing sharded over data parallel ranks.
PLAIN = StepSettings(
    batch_size=1, seq_length=4096, num_micro_batches=1, data_parallel=1, model_parallel=2, context_parallel=1,
    pipeline=Pipeline(1), optimizer="AdamW", sharding=WeightSharding(), is_accumulator_sharded=False,
    is_state_offloaded=False, compute_dtype="bfloat16", is_fused=False,
)  # fmt: skip


@functools.cache
def captured(name: str) -> CapturedStep:
    """Return a step."""
    text = gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes())
    step = from_plain(json.loads(text), {cls.__name__: cls for cls in STEP_CLASSES})
    assert isinstance(step, CapturedStep)
    return step
