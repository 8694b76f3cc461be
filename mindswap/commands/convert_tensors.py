"""`mindswap convert --to 2.x | 1.9 --trace FILE`: which tensors of a recorded step settings move, before and after."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mindswap.api.recorded import read_trace
from mindswap.errors import LaunchError
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.mindformers_2x.convert import ConvertedSettings
from mindswap.policy.mindformers_2x.tables import Model, dense_layer
from mindswap.policy.model import Policy
from mindswap.policy.resolve import resolve_layer
from mindswap.pynative.by_tensor import TensorFate, differences, fate_in_1_9
from mindswap.pynative.trace import Trace
from mindswap.units import format_bytes


@dataclass(frozen=True, eq=False)
class Tensors:
    """The tensors of a recorded step."""

    file: str  # the trace
    trace: Trace  # what is in it
    layers: tuple[CellNode, ...]  # tree of each layer, with the names of 1.9
    model: Model  # what can be named in its layers in 2.x

    @property
    def num_layer_ops(self) -> int:
        """Operators of a layer in backward."""
        count = sum(not operator.is_forward and operator.layer_index is not None for operator in self.trace.operators)
        return max(count // self.trace.num_layers, 1)

    def of_policy(self, policy: Policy) -> TensorFate:
        """What MindFormers 1.9 does with them."""
        if not policy.is_swap_enabled:
            policy = replace(policy, is_swap_enabled=True, layer_swap=(), op_swap=())
        return fate_in_1_9(self.trace, [resolve_layer(policy, i, tree) for i, tree in enumerate(self.layers)])

    def refuse_nothing(self, before: TensorFate) -> None:
        """Stop where a file that swaps moves nothing of this step: another model, most likely.

        Raises:
            LaunchError: it moves nothing.
        """
        if not before.moved:
            raise LaunchError(
                f"{self.file}: nothing that the configuration swaps is saved in this step\n"
                "    fix:     a trace of the same model; or convert by name, without --trace"
            )

    def compared(
        self, converted: ConvertedSettings, before: TensorFate, after: TensorFate, version: str
    ) -> ConvertedSettings:
        """The result, with what it moves and recomputes against what was asked."""
        lost = [
            *differences(self.trace, before.moved, after.moved, "moves", version),
            *differences(self.trace, before.again, after.again, "recomputes", version),
        ]
        sizes = [self._bytes(found) for found in (before.moved, after.moved, before.again, after.again)]
        by = "by tensor of {}: moved {} before, {} now; recomputed {} before, {} now".format(self.file, *sizes)
        return replace(converted, lost=(*converted.lost, *lost), by=by)

    def _bytes(self, storages: Sequence[int] | frozenset[int]) -> str:
        return format_bytes(sum(self.trace.storages[index].size_bytes for index in storages))


def read_tensors(file: str, num_layers: int) -> Tensors:
    """The tensors of a trace that `mindswap trace` made of a model with so many layers.

    Raises:
        DataError: the file cannot be read.
        LaunchError: it is of another model.
    """
    step, _ = read_trace(file)
    if step.trace.num_layers != num_layers:
        raise LaunchError(
            f"{file}: has {step.trace.num_layers} layers, the configuration {num_layers}\n"
            "    fix:     a trace of the same model"
        )
    paths = dense_layer()
    return Tensors(file, step.trace, step.layers, Model((paths,) * num_layers, "dense models of 2.x"))
