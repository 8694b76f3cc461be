"""Dry run of the PyNative trainer of MindFormers 2.x, the main program of a child process.

    python -m mindswap.adapters.pynative.trainer_dry_run REQUEST.json RESULT.json

The process runs on MindSpore's Ascend backend with `MS_SIMULATION_LEVEL=1`: MindFormers' own trainer, network,
optimizer, swap and recompute run, and no kernel is launched. The request is `{"config": ..., "sample": ...}` (see
`mindswap.features.dryrun.trainer_config`); the result has the memory of each phase of a step.

MindFormers applies swap and recompute with several processes only. Here they are applied as it does then.
"""

import functools
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import dataset, nn
from mindspore.common.initializer import Zero
from mindspore.common.parameter import Parameter

from mindswap.adapters.pynative.hyper_parallel_stand_in import install_unless_present
from mindswap.errors import LaunchError, MindswapError

NUM_STEPS = 3  # the first one allocates the optimizer's states, the others are measured
MIN_SHARED_BYTES = 1 << 16


def main(arguments: list[str]) -> int:
    """Run the request of the first file, and write the result, or the error, to the second one."""
    return answer_request(dry_run, arguments)


def answer_request(function: Callable[..., dict[str, Any]], arguments: list[str]) -> int:
    """Call a function with the JSON object of the first file, and write its result or error to the second one."""
    request, result = (Path(name) for name in arguments)
    try:
        answer = function(**json.loads(request.read_text("utf-8")))
    except MindswapError as error:
        traceback.print_exc()
        answer = {"error": str(error)}
    result.write_text(json.dumps(answer), encoding="utf-8")
    return 0


def dry_run(config: dict[str, Any], sample: dict[str, Any]) -> dict[str, Any]:
    """Train the steps of a dry run.

    Args:
        config: configuration of MindFormers 2.x for one process.
        sample: sizes and columns of the made-up data: batch_size, seq_length, vocab_size, columns.

    Returns:
        The memory of the phases of the measured step, of the network and the optimizer, and what was moved; in bytes.
    """
    uses_stand_in = prepare()
    from mindswap.adapters.pynative.layers_2x import layers_of
    from mindswap.adapters.pynative.measured_trainer import MeasuredTrainer

    config["training"]["steps"] = NUM_STEPS
    num_samples = sample["batch_size"] * sample["num_micro_batches"] * (NUM_STEPS + 1)
    data = synthetic_data(num_samples=num_samples, **{k: v for k, v in sample.items() if k != "num_micro_batches"})
    trainer = MeasuredTrainer(config, data)
    if trainer.schedule is None:
        (network,) = trainer.model
        trainer.backward_profile.measure(network, layers_of(network))
    trainer.train()
    return measured_result(trainer, uses_stand_in)


def measured_result(trainer: Any, uses_stand_in: bool) -> dict[str, Any]:
    """Return the memory of a trained `MeasuredTrainer` as plain data, see `dry_run`."""
    measured = min(trainer.steps[1:], key=lambda step: max(step.peaks.values()))
    return {
        **measured.to_data(),
        "weight_bytes": trainer.weight_bytes,
        "state_bytes": trainer.state_bytes,
        "trained_bytes": trainer.trained_bytes,
        "expert_bytes": trainer.expert_bytes,
        "expert_weight_bytes": trainer.expert_weight_bytes,
        "unit_bytes": trainer.unit_bytes,
        "backward_profile": trainer.backward_profile.parts,
        "added_by_layer": trainer.added_by_layer,
        "added_by_cell": trainer.added_by_cell,
        "layer_indices": trainer.layer_indices,
        **trainer.applied_to_data(),
        "moved": asdict(measured.moved) if uses_stand_in else None,
        "uses_stand_in": uses_stand_in,
    }


def prepare() -> bool:
    """Prepare this process for the trainer on the Ascend backend, before MindFormers' trainer is imported.

    Returns:
        Whether the stand-in for HyperParallel is used.
    """
    _use_one_processor()
    ms.set_device("Ascend")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    uses_stand_in = install_unless_present()
    name_device_of_empty_cells("Ascend")
    _make_parameters_on_device()
    _accept_cube_math_type()
    return uses_stand_in


def synthetic_data(
    num_samples: int, batch_size: int, seq_length: int, vocab_size: int, columns: list[str]
) -> dataset.Dataset:
    """Return made-up samples with the columns of the file.

    Raises:
        LaunchError: a column is unknown.
    """
    values = np.random.default_rng(0)
    tokens = values.integers(0, vocab_size, seq_length + 1).astype(np.int32)
    made: Mapping[str, np.ndarray] = {
        "input_ids": tokens[:-1],
        "labels": tokens[1:],
        "loss_mask": np.ones(seq_length, np.float32),
        "position_ids": np.arange(seq_length, dtype=np.int32),
    }
    if "attention_mask" in columns:
        made = {**made, "attention_mask": np.triu(np.ones((1, seq_length, seq_length), np.uint8), 1)}
    unknown = [name for name in columns if name not in made]
    if unknown:
        raise LaunchError(
            f"train_dataset.dataloader.column_names: a dry run cannot make samples of {', '.join(unknown)}\n"
            f"    allowed: {', '.join(made)}, attention_mask"
        )
    sample = tuple(made[name] for name in columns)
    samples = dataset.GeneratorDataset([sample] * num_samples, columns, shuffle=False)
    return samples.batch(batch_size)


def _use_one_processor() -> None:
    """Let all threads share a processor, so that the one that runs Python is ahead of those that launch operators.

    Memory is freed when Python drops a tensor or when the last operator that reads it was launched, whichever is later.
    On a card launching is the slower of the two; here it takes no time, and the order would change from run to run.
    """
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[os.getpid() % len(processors)]})


def name_device_of_empty_cells(default_device: str) -> None:
    """Let `Cell.to_empty()` of mindspore 2.10.0 allocate on the device; without a name its tensors stay on meta.

    Args:
        default_device: `CPU` or `Ascend`.

    Raises:
        LaunchError: MindSpore is older.
    """
    if not hasattr(nn.Cell, "to_empty"):
        raise LaunchError(
            f"mindspore {ms.__version__} has no Cell.to_empty, which the trainer of MindFormers 2.x calls\n"
            "    fix:     pip install mindspore==2.10.0"
        )
    to_empty = nn.Cell.to_empty

    @functools.wraps(to_empty)
    def to_empty_on_device(self: nn.Cell, *, device: str | None = None, **options: Any) -> Any:
        return to_empty(self, device=device or default_device, **options)

    nn.Cell.to_empty = to_empty_on_device


def _make_parameters_on_device() -> None:
    """Let parameters take the memory of device tensors that they are made from, and zeros be made on the device.

    MindSpore copies both through arrays on the host, which have no values in a dry run and take 4 bytes of host memory
    for each float32 weight and state of the optimizer. The device memory is the same.
    """
    new_arguments = Parameter._get_parameter_new_args

    @functools.wraps(new_arguments)
    def shared_arguments(data: Any, *arguments: Any) -> Any:
        is_on_device = isinstance(data, ms.Tensor) and not data.has_init and not data.is_meta
        if is_on_device and data.nbytes >= MIN_SHARED_BYTES:
            return (ms.Tensor, data)
        return new_arguments(data, *arguments)

    Parameter._get_parameter_new_args = staticmethod(shared_arguments)
    init_data = ms.Tensor.init_data

    @functools.wraps(init_data)
    def zeros_on_device(self: ms.Tensor, *arguments: Any, **options: Any) -> ms.Tensor:
        if not isinstance(self.init, Zero) or arguments or options or self.nbytes < MIN_SHARED_BYTES:
            return init_data(self, *arguments, **options)
        self.init = None
        return ms.mint.empty(self.shape, dtype=self.dtype, device="Ascend")

    ms.Tensor.init_data = zeros_on_device


def _accept_cube_math_type() -> None:
    """Accept the precision setting of Muon, which MindSpore has from 2.11 on; it has no effect on memory."""
    precision = ms.device_context.ascend.op_precision
    if not hasattr(precision, "cube_math_type"):
        precision.cube_math_type = lambda value: None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
