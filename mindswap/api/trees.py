"""The layers of a configuration's network, as MindFormers builds it."""

import importlib.util
import os

from mindswap.adapters.quiet import quiet
from mindswap.policy.cell_tree import LayerTrees


def has_mindformers() -> bool:
    """Whether the real network can be asked."""
    return all(importlib.util.find_spec(name) is not None for name in ("mindspore", "mindformers"))


def known_or_real(path: str, known: LayerTrees | None, num_layers: int | None) -> LayerTrees | None:
    """The layers as a table has them (`known`), else as MindFormers builds them; None where that is not possible."""
    if known is not None or num_layers is None or not has_mindformers():
        return known
    return read_real_trees(path, num_layers)


def read_real_trees(path: str, num_layers: int) -> LayerTrees:
    """The layers as MindFormers builds them from a YAML file."""
    absolute_path = os.path.abspath(path)  # noqa: PTH100 quiet() changes the working directory
    with quiet():
        from mindswap.adapters.mindformers import read_layer_trees

        return read_layer_trees(absolute_path, num_layers)
