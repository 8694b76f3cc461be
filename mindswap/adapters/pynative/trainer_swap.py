"""Dry run of mindswap's own swap in the PyNative trainer of MindFormers 2.x, the main program of a child process.

    python -m mindswap.adapters.pynative.trainer_swap REQUEST.json RESULT.json

As `trainer_dry_run`; the configuration has no section `swap`. Without `trace` a step is recorded for the executor. With
it and `distances` the trainer trains from the first step on with the schedule that follows from both.
"""

import sys
from collections.abc import Mapping
from typing import Any

from mindswap.adapters.pynative.trainer_dry_run import (
    NUM_STEPS,
    answer_request,
    measured_result,
    prepare,
    synthetic_data,
)
from mindswap.errors import LaunchError
from mindswap.pynative.ledger import SwapReport
from mindswap.pynative.schedule import Distance, Unit
from mindswap.pynative.trace import RecordedStep, Trace, dump_trace, load_trace


def swap(
    config: dict[str, Any], sample: dict[str, Any], trace: str = "", distances: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Record a step, or train with swap.

    Args:
        config: configuration of MindFormers 2.x for one process, without swap.
        sample: see `trainer_dry_run.dry_run`.
        trace: a recorded step; "" to record it.
        distances: distance in layers of each storage to swap, by its index in the trace.
    """
    uses_stand_in = prepare()
    from mindswap.adapters.graph.apply import read_tree
    from mindswap.adapters.pynative.copies import StreamCopies
    from mindswap.adapters.pynative.layers_2x import indices_of_layers, layers_of
    from mindswap.adapters.pynative.measured_trainer import MeasuredTrainer
    from mindswap.adapters.pynative.swap import PipelineSwap, Swap

    config["training"]["steps"] = NUM_STEPS
    num_samples = sample["batch_size"] * sample["num_micro_batches"] * (NUM_STEPS + 1)
    data = synthetic_data(num_samples=num_samples, **{k: v for k, v in sample.items() if k != "num_micro_batches"})
    trainer = MeasuredTrainer(config, data)
    (network,) = trainer.model
    layers = layers_of(network)
    num_layers = config["model"].get("num_hidden_layers") or config["model"]["num_layers"]
    if not trace:
        recorded = _record(trainer, network, layers)
        trees = tuple(read_tree(layer) for layer in layers)
        return {
            "trace": dump_trace(RecordedStep(recorded, trees, "")),
            "layer_indices": indices_of_layers(network, num_layers),
        }
    found = {
        int(index): Distance(count, Unit.LAYERS, moves_last_layers=True) for index, count in (distances or {}).items()
    }
    new_swap = Swap if trainer.schedule is None else PipelineSwap
    running = new_swap(
        network, layers, lambda trace: found, copies=StreamCopies(), trace=load_trace(trace, "the recorded step").trace
    )
    trainer.train()
    report = running.finish()
    return {**measured_result(trainer, uses_stand_in), "moved": _copies(running, report), "swap": report.to_json()}


def _record(trainer: Any, network: Any, layers: list[Any]) -> Trace:
    """Record a pass of a network, or of a pipeline stage, whose other passes run beside it."""
    from mindswap.adapters.pynative.copies import StreamCopies
    from mindswap.adapters.pynative.record import record
    from mindswap.adapters.pynative.swap import PipelineSwap

    if trainer.schedule is None:
        batch = trainer.first_batch()
        return record(network, layers, lambda: trainer.run_passes(batch))
    running = PipelineSwap(network, layers, lambda trace: {}, copies=StreamCopies())
    trainer.train()
    if running.trace is None:
        raise LaunchError("the stage had no backward pass through its layers: nothing was recorded")
    return running.trace


def _copies(running: Any, report: SwapReport) -> dict[str, int]:
    """Return the copies of a step as `hyper_parallel_stand_in.swap.Moved` has them."""
    num_moved = len(running.schedule.moved) * report.num_passes // NUM_STEPS
    return {
        "out_bytes": report.offloaded_bytes // NUM_STEPS,
        "back_bytes": report.prefetched_bytes // NUM_STEPS,
        "num_out": num_moved,
        "num_back": num_moved,
        "peak_host_bytes": running.copies.allocated_host_bytes,
    }


if __name__ == "__main__":
    sys.exit(answer_request(swap, sys.argv[1:]))
