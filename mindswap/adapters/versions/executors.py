"""MindSpore's executors: in `mindspore.graph.api` since 2.9, in `mindspore.common.api` before.

A swap that runs in PyNative mode needs `MsDispatchMode`, which 2.9 brought: before, there is none to pause.
"""

from importlib.util import find_spec

import mindspore as ms

from mindswap.errors import LaunchError

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
