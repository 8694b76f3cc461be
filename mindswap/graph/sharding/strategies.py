"""How the model cuts its operators, from the attributes that `shard` leaves on a primitive."""

import math
from collections.abc import Iterator, Mapping

from mindswap.graph.sharding.splits import Split

# Attribute of a Reshape that each rank does with its own part, and of what reads one: it never communicates to keep
# the number of parts.
LOCAL_MARK = "mindswap_local"


def read_strategy(attributes: Mapping[str, object]) -> tuple[Split, ...]:
    """Split of each operand as the model set it; empty without a strategy."""
    return _read(attributes, "in")


def read_out_strategy(attributes: Mapping[str, object]) -> tuple[Split, ...]:
    """Split of each output as the model set it; empty where it did not."""
    return _read(attributes, "out")


def _read(attributes: Mapping[str, object], side: str) -> tuple[Split, ...]:
    given = attributes.get(f"{side}_strategy")
    if isinstance(given, tuple):
        return tuple(_flatten(given))
    return _layouts(attributes.get(f"{side}_layout"))


def _flatten(strategy: tuple[object, ...]) -> Iterator[Split]:
    """A strategy of tuples in tuples (of an operator that takes a tuple of tensors) as one list."""
    for entry in strategy:
        if isinstance(entry, tuple) and entry and isinstance(entry[0], tuple):
            yield from _flatten(entry)
        elif isinstance(entry, tuple):
            yield entry


def _layouts(layouts: object) -> tuple[Split, ...]:
    """Splits of `mindspore.Layout`: a tensor map counts the axes of the device matrix from the right, -1 for none."""
    if not isinstance(layouts, tuple):
        return ()
    splits = []
    for layout in layouts:
        if not isinstance(layout, Mapping):
            return ()
        matrix, tensor_map = layout["device_matrix"], layout["tensor_map"]
        dims = (axes if isinstance(axes, tuple) else (axes,) for axes in tensor_map)
        splits.append(tuple(math.prod(matrix[-1 - axis] for axis in axes if axis >= 0) for axes in dims))
    return tuple(splits)
