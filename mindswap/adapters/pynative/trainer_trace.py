"""Recording of one step of the PyNative trainer of MindFormers 2.x in the dry run, the main program of a child process.

    python -m mindswap.adapters.pynative.trainer_trace REQUEST.json RESULT.json

As `trainer_dry_run`, without swap and recompute; the request has `text` as well, the configuration to store. The
operators are those of Ascend: fused attention, bfloat16, views without copies.
"""

import sys
from importlib.metadata import version
from typing import Any

from mindswap.adapters.pynative.trainer_dry_run import answer_request, prepare, synthetic_data
from mindswap.pynative.trace import RecordedStep, dump_trace

NOTES = (
    "recorded with the trainer of MindFormers 2.x in MindSpore's dry run on the Ascend backend, without a card",
    "simulated memory lacks float32 weights of the optimizer and gradients of the logits, up to a quarter of the peak: "
    "see mindswap dryrun of the plan",
)


def trace(config: dict[str, Any], sample: dict[str, Any], text: str) -> dict[str, Any]:
    """Record the forward and backward pass of one micro-batch.

    Args:
        config: configuration of MindFormers 2.x for one process, without swap and recompute.
        sample: see `trainer_dry_run.dry_run`.
        text: the configuration to store in the trace.
    """
    prepare()
    from mindswap.adapters.graph.apply import read_tree
    from mindswap.adapters.pynative.measured_trainer import MeasuredTrainer, layers_of
    from mindswap.adapters.pynative.record import record

    count = sample.pop("num_micro_batches")
    data = synthetic_data(num_samples=sample["batch_size"] * (count + 1), **sample)
    trainer = MeasuredTrainer(config, data)
    (network,) = trainer.model
    layers = layers_of(network)
    batch = trainer.first_batch()
    recorded = record(network, layers, lambda: trainer.run_passes(batch), with_values=True)
    versions = {name: version(name) for name in ("mindspore", "mindformers")}
    trees = tuple(read_tree(layer) for layer in layers)
    return {"trace": dump_trace(RecordedStep(recorded, trees, text, versions, NOTES))}


if __name__ == "__main__":
    sys.exit(answer_request(trace, sys.argv[1:]))
