"""Pipeline stages and their schedules 1F1B and GPipe, one stage for each process.

As HyperParallel documents them: a batch is split along its first dimension; a stage gets what it receives as its first
argument, next to the columns of the micro-batch; in 1F1B stage i of n runs n - 1 - i forward passes ahead of the
backward passes. Gradients of all micro-batches are summed.

Tensors between stages are broadcast in groups of two ranks, as `mint.distributed.send` of mindspore 2.10.0 fails on a
CPU (it asks for the group `hccl_world_group`). Their shape is known: sequence, batch, hidden size.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import mindspore as ms
from mindspore import mint, nn, ops
from mindspore.graph.api import _no_grad
from mindspore.mint import distributed

from mindswap.adapters.pynative.hyper_parallel_stand_in.mesh import DeviceMesh, group_of
from mindswap.errors import LaunchError

Step = tuple[str, int]  # FORWARD or BACKWARD, and the micro-batch
FORWARD, BACKWARD = "F", "B"
TOKENS = "input_ids"  # column of shape (batch, sequence)


class PipelineStage:
    """A stage of the model.

    Args:
        submodule: its cell.
        stage_index: position of the stage.
        stage_num: number of stages.
        device: kind of device.
        group: communication group of the stages.
        mesh: ranks of the stages.
        has_backward: whether gradients are computed.
        dyn_shape: whether shapes differ between micro-batches.
    """

    def __init__(
        self, submodule: nn.Cell, stage_index: int, stage_num: int, device: str = "", group: str = "",
        mesh: DeviceMesh | None = None, has_backward: bool = True, dyn_shape: bool = False,
    ):  # fmt: skip
        self.submodule = submodule
        self.stage_index = stage_index
        self.stage_num = stage_num
        self.mesh = mesh
        self.outputs: dict[int, Any] = {}  # of micro-batches without backward so far
        self.received: dict[int, ms.Tensor] = {}

    @property
    def is_first_stage(self) -> bool:
        """Return whether the stage begins the model."""
        return self.stage_index == 0

    @property
    def is_last_stage(self) -> bool:
        """Return whether the stage computes the loss."""
        return self.stage_index == self.stage_num - 1

    def get_last_stage_sens(self, last_stage_outputs: Any) -> Any:
        """Return the gradients with which backward begins: ones."""
        if isinstance(last_stage_outputs, list | tuple):
            return [ops.ones_like(output) for output in last_stage_outputs]
        return ops.ones_like(last_stage_outputs)

    def forward_one_chunk(self, micro_index: int, columns: Mapping[str, Any]) -> Any:
        """Run forward of a micro-batch, and send its output to the next stage."""
        received = () if self.is_first_stage else (self._receive_forward(micro_index, columns),)
        output = self.submodule(*received, **columns)
        self.outputs[micro_index] = output
        if not self.is_last_stage:
            self._require_known_shape(output, columns)
            self._send(output, self.stage_index + 1)
        return output

    def backward_one_chunk(self, micro_index: int) -> None:
        """Run backward of a micro-batch, and send the gradient of its input to the stage before."""
        output = self.outputs.pop(micro_index)
        outputs = tuple(output) if isinstance(output, list | tuple) else (output,)
        if self.is_last_stage:
            gradients = self.get_last_stage_sens(output)
            gradients = tuple(gradients) if isinstance(gradients, list) else (gradients,)
        else:
            gradients = (self._receive(mint.empty_like(output), self.stage_index + 1),)
        for each, gradient in zip(outputs, gradients, strict=True):
            each.backward(gradient)
        if not self.is_first_stage:
            self._send(self.received.pop(micro_index).grad, self.stage_index - 1)

    def _receive_forward(self, micro_index: int, columns: Mapping[str, Any]) -> ms.Tensor:
        shape, dtype = self._boundary(columns)
        with _no_grad():
            tensor = self._receive(mint.empty(shape, dtype=dtype), self.stage_index - 1)
        tensor.requires_grad = True
        self.received[micro_index] = tensor
        return tensor

    def _boundary(self, columns: Mapping[str, Any]) -> tuple[tuple[int, ...], Any]:
        """Return shape and type of a tensor between stages."""
        config = self.submodule.model.config
        batch_size, length = columns[TOKENS].shape
        return (length, batch_size, config.hidden_size), config.compute_dtype

    def _require_known_shape(self, output: Any, columns: Mapping[str, Any]) -> None:
        shape, dtype = self._boundary(columns)
        if not isinstance(output, ms.Tensor) or (tuple(output.shape), output.dtype) != (shape, dtype):
            found = f"{output.dtype} {tuple(output.shape)}" if isinstance(output, ms.Tensor) else type(output).__name__
            raise LaunchError(
                f"stage {self.stage_index}: its output is {found}: the stand-in for HyperParallel sends one tensor\n"
                f"    allowed: {dtype} {shape}: sequence, batch, hidden size"
            )

    def _send(self, tensor: ms.Tensor, stage: int) -> None:
        with _no_grad():
            self._exchange(tensor.contiguous(), stage, self.stage_index)

    def _receive(self, tensor: ms.Tensor, stage: int) -> ms.Tensor:
        with _no_grad():
            self._exchange(tensor, stage, stage)
        return tensor

    def _exchange(self, tensor: ms.Tensor, stage: int, source: int) -> None:
        ranks = tuple(range(self.stage_num)) if self.mesh is None else self.mesh.rank_list
        first, second = sorted((self.stage_index, stage))
        distributed.broadcast(tensor, ranks[source], group=group_of((ranks[first], ranks[second])))


class Schedule1F1B:
    """Forward and backward passes in turn, so that a stage holds few micro-batches.

    Args:
        stages: the stage of this process.
        micro_batch_num: micro-batches of a step.
    """

    def __init__(self, stages: Any, micro_batch_num: int):
        stages = stages if isinstance(stages, list) else [stages]
        if len(stages) != 1:
            raise LaunchError("pipeline_parallel_interleave_num: the stand-in for HyperParallel has one stage a rank")
        self.stage: PipelineStage = stages[0]
        self.micro_batch_num = micro_batch_num
        # Groups are made by all ranks in the same order.
        ranks = tuple(range(self.stage.stage_num)) if self.stage.mesh is None else self.stage.mesh.rank_list
        for pair in itertools.pairwise(ranks):
            group_of(pair)

    @property
    def num_ahead(self) -> int:
        """Micro-batches whose forward runs before the first backward, beyond the one that is next."""
        return min(self.stage.stage_num - 1 - self.stage.stage_index, self.micro_batch_num)

    @property
    def exec_order(self) -> list[Step]:
        """Passes of this stage, in order."""
        return list(self._steps())

    def _steps(self) -> Iterator[Step]:
        count, ahead = self.micro_batch_num, self.num_ahead
        yield from ((FORWARD, index) for index in range(ahead))
        for index in range(count - ahead):
            yield FORWARD, index + ahead
            yield BACKWARD, index
        yield from ((BACKWARD, index) for index in range(count - ahead, count))

    def run(self, **columns: Any) -> list[Any]:
        """Run a step.

        Args:
            columns: columns of the whole batch.

        Returns:
            Outputs of the last stage, one tuple for each micro-batch; empty on the others.
        """
        micro_batches = [self._micro_batch(columns, index) for index in range(self.micro_batch_num)]
        losses = []
        for kind, index in self._steps():
            if kind == FORWARD:
                output = self.stage.forward_one_chunk(index, micro_batches[index])
                if self.stage.is_last_stage:
                    losses.append(output if isinstance(output, tuple) else (output,))
            else:
                self.stage.backward_one_chunk(index)
        return losses

    def _micro_batch(self, columns: Mapping[str, Any], index: int) -> dict[str, Any]:
        def piece(value: Any) -> Any:
            size = value.shape[0] // self.micro_batch_num
            return value[index * size : (index + 1) * size]

        return {name: piece(value) for name, value in columns.items()}


class ScheduleGPipe(Schedule1F1B):
    """All forward passes, then all backward passes."""

    @property
    def num_ahead(self) -> int:
        """All micro-batches."""
        return self.micro_batch_num
