"""Differences between versions of MindSpore and MindFormers; 1.9 also covers the graph mode of 2.x.

MindSpore's executors are in `mindspore.graph.api` since 2.9, and in `mindspore.common.api` before. Swap in PyNative
mode needs `MsDispatchMode`, which exists since 2.9. MindFormers need not be installed.
"""

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec

import mindspore as ms

from mindswap.errors import LaunchError
from mindswap.rules.machine.software import installed_version

# 2.7.1 and 2.7.2 have a package `mindspore.graph` without `api`.
if find_spec("mindspore.graph") is not None and find_spec("mindspore.graph.api") is not None:
    from mindspore.graph.api import _cell_graph_executor, _pynative_executor
else:
    from mindspore.common.api import _cell_graph_executor, _pynative_executor

cell_graph_executor, pynative_executor = _cell_graph_executor, _pynative_executor


def require_pynative() -> None:
    """Require a MindSpore that exposes the operators of a step in PyNative mode.

    Raises:
        LaunchError: with the versions to install.
    """
    if not hasattr(ms, "MsDispatchMode"):
        raise LaunchError(
            f"mindspore {ms.__version__} has no MsDispatchMode, by which swap in PyNative mode sees operators\n"
            "    fix: mindspore 2.9.0 with mindformers 1.9.0, or context.mode: 0 (graph mode)"
        )


def set_output_path(folder: str) -> None:
    """Set the folder for the output of MindFormers."""
    if installed_version("mindformers").startswith(("1.6.", "1.7.")):
        from mindformers.tools.utils import set_output_path as set_path
    else:
        from mindformers.utils.file_utils import set_output_path as set_path
    set_path(folder)


def builds_form(is_legacy: bool) -> bool:
    """Return whether this process builds legacy or newer models as given; its first context decides."""
    if installed_version("mindformers").startswith("1.6."):
        return True  # 1.6 does not remember it in the context
    from mindformers.core.context.build_context import is_legacy_model

    return is_legacy_model() == is_legacy


@contextlib.contextmanager
def replaced(owner: object, **values: object) -> Iterator[None]:
    """Replace attributes of a module or a class inside the block."""
    originals = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)
