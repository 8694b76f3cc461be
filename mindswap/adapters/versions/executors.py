"""MindSpore's executors: in `mindspore.graph.api` since 2.9, in `mindspore.common.api` before."""

from importlib.util import find_spec

# 2.7.1 and 2.7.2 have a package `mindspore.graph`, but no `api` in it.
if find_spec("mindspore.graph") is not None and find_spec("mindspore.graph.api") is not None:
    from mindspore.graph.api import _cell_graph_executor, _pynative_executor
else:
    from mindspore.common.api import _cell_graph_executor, _pynative_executor

__all__ = ["cell_graph_executor", "pynative_executor"]

cell_graph_executor, pynative_executor = _cell_graph_executor, _pynative_executor
