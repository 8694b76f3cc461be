"""Methods of tensors that the trainer of MindFormers 2.x calls, and MindSpore 2.10 has under private names only."""

from typing import Any

from mindspore import Tensor, ops
from mindspore._c_expression import TensorPy, pyboost_detach, run_backward

from mindswap.adapters.versions import pynative_executor


def enable_mindspore_backward_compat() -> None:
    """Define `backward`, `grad`, `requires_grad`, `is_leaf`, `grad_fn` and `detach` of tensors."""
    pynative_executor.set_grad_flag(True)
    TensorPy.backward = _backward
    TensorPy.detach = _detach
    TensorPy.grad = property(lambda self: self._grad, _set_grad)
    TensorPy.requires_grad = property(lambda self: self._requires_grad, _set_requires_grad)
    TensorPy.is_leaf = property(lambda self: self._is_leaf)
    TensorPy.grad_fn = property(_grad_fn)


def _backward(
    self: Tensor, gradient: Tensor | None = None, retain_graph: bool | None = None, create_graph: bool = False
) -> None:
    """Compute the gradients of all leaves, and add them to their `grad`."""
    start = ops.ones_like(self) if gradient is None else gradient
    is_kept = create_graph if retain_graph is None else retain_graph
    run_backward((self,), (start,), is_kept, create_graph, (), allow_unreachable=True, accumulate_grad=True)


def _detach(self: Tensor) -> Tensor:
    return pyboost_detach(self)


def _set_grad(self: Tensor, value: Tensor | None) -> None:
    self._grad = value


def _set_requires_grad(self: Tensor, value: bool) -> None:
    self._requires_grad = value


def _grad_fn(self: Tensor) -> Any:
    node = self._grad_node
    return node if node is not None and not node.is_leaf() else None
