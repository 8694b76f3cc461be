"""Recorded steps of a configuration of MindFormers 2.x: of each pipeline stage, recorded once and cached."""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from mindswap.command_line.progress import PhaseLines
from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.features.dryrun import (
    count_stages,
    graph_mode_text,
    record_trainer_step,
    recorder_versions,
    trace_request,
)
from mindswap.graph.capture_cache import cached, make_key, open_data_cache
from mindswap.policy.cell_tree import CellNode
from mindswap.pynative.trace import SCHEMA_VERSION, RecordedStep, dump_trace, load_trace
from mindswap.steps.recorded import read_trace

# Version of the recorded data; increase it when they change.
RECORDER_VERSION = 4


def recorded_stages(document: Document, trace: str | None, use_cache: bool) -> tuple[list[RecordedStep], Document]:
    """Return the recorded step of each pipeline stage, and the configuration in them.

    Args:
        document: a configuration of MindFormers 2.x.
        trace: file made by `mindswap trace`; None records the step, or takes it from the cache.
        use_cache: whether to read and write the cache of recorded steps.

    Raises:
        PolicyError: this Python has no MindFormers 2.x to record the step.
        LaunchError: the dry run is not possible, or failed.
        DataError: the trace cannot be read.
    """
    if trace is not None:
        recorded, source = read_trace(trace)
        return [recorded], source
    num_stages = count_stages(document)
    steps = [_recorded_stage(document, stage, num_stages, use_cache) for stage in range(num_stages)]
    return steps, parse_document(steps[0].config, document.file)


def _recorded_stage(document: Document, stage: int, num_stages: int, use_cache: bool) -> RecordedStep:
    report_status = PhaseLines(time.monotonic(), sys.stderr)

    def make() -> str:
        place = f", pipeline stage {stage}" if num_stages > 1 else ""
        report_status(f"recording a step of the trainer of MindFormers 2.x, once{place}")
        return dump_trace(record_trainer_step(document, report_status, stage))

    text = cached(open_data_cache() if use_cache else None, trace_key(document, stage), {}, make)
    # The trace may be that of a file with other micro-batches, or another section `mindswap`: neither is in the key.
    return replace(load_trace(text, document.file), config=graph_mode_text(document))


def trace_key(document: Document, stage: int = 0) -> str:
    """Return the key of the recorded step of a configuration of MindFormers 2.x in the cache.

    Args:
        document: the configuration.
        stage: pipeline stage.

    Raises:
        GraphError: a size of the model is missing.
        LaunchError: the batch cannot be distributed.
    """
    return make_key(
        question="trace of MindFormers 2.x",
        versions=[SCHEMA_VERSION, RECORDER_VERSION, *recorder_versions()],
        request=repr(trace_request(document)),
        **({"stage": stage} if stage else {}),
    )


def trees_of(stages: Sequence[RecordedStep]) -> tuple[CellNode, ...]:
    """Return the cell trees of the layers of all pipeline stages, in the order of the full model."""
    indices = [index for stage in stages for index in stage.layer_indices or range(len(stage.layers))]
    trees = [tree for stage in stages for tree in stage.layers]
    return tuple(tree for _, tree in sorted(zip(indices, trees, strict=True), key=lambda entry: entry[0]))
