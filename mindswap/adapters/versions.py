"""Differences between versions of MindSpore and MindFormers; 1.9 stands for the graph mode of 2.x, too.

MindSpore's executors are in `mindspore.graph.api` since 2.9, in `mindspore.common.api` before. A swap that runs in
PyNative mode needs `MsDispatchMode`, which 2.9 brought: before, there is none to pause. MindFormers need not be there.
"""

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec

import mindspore as ms

from mindswap.errors import LaunchError
from mindswap.rules.machine.software import installed_version

# 2.7.1 and 2.7.2 have a package `mindspore.graph`, but no `api` in it.
if find_spec("mindspore.graph") is not None and find_spec("mindspore.graph.api") is not None:
    from mindspore.graph.api import _cell_graph_executor, _pynative_executor
else:
    from mindspore.common.api import _cell_graph_executor, _pynative_executor

cell_graph_executor, pynative_executor = _cell_graph_executor, _pynative_executor


def require_pynative() -> None:
    """Stop a swap in PyNative mode where MindSpore does not show the operators of a step.

    Raises:
        LaunchError: saying what to install.
    """
    if not hasattr(ms, "MsDispatchMode"):
        raise LaunchError(
            f"mindspore {ms.__version__} has no MsDispatchMode, by which swap in PyNative mode sees operators\n"
            "    fix: mindspore 2.9.0 with mindformers 1.9.0, or context.mode: 0 (graph mode)"
        )


def set_output_path(folder: str) -> None:
    """Let MindFormers write below a folder."""
    if installed_version("mindformers").startswith(("1.6.", "1.7.")):
        from mindformers.tools.utils import set_output_path as set_path
    else:
        from mindformers.utils.file_utils import set_output_path as set_path
    set_path(folder)


def builds_form(is_legacy: bool) -> bool:
    """True if this process builds models of this form: the first context decides between legacy and newer ones."""
    if installed_version("mindformers").startswith("1.6."):
        return True  # no context remembers it
    from mindformers.core.context.build_context import is_legacy_model

    return is_legacy_model() == is_legacy


@contextlib.contextmanager
def replaced(owner: object, **values: object) -> Iterator[None]:
    """While this lasts, attributes of a module or a class have other values."""
    originals = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)
