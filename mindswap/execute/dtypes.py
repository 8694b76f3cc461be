"""numpy types of the compiler's types."""

import numpy as np

from mindswap.errors import GraphError

__all__ = ["dtype_of"]

NAMES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip


def dtype_of(name: str) -> np.dtype:
    """The numpy type of a type as `TensorType` has it.

    Raises:
        GraphError: if numpy has no such type.
    """
    if name not in NAMES:
        raise GraphError(f"--execute has no values of type {name}; use float16 or float32 in the configuration")
    return np.dtype(name)
