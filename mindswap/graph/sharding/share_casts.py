"""Casts of weights that all micro-batches share, where the parallel optimizer has nothing to gather.

With `enable_parallel_optimizer` and several micro-batches MindSpore casts a float32 weight before the calls of the
lazy_inline cell, not in it: step_parallel_utils.cc, FindChildCastWithFP32ToFP16 (follows the weight into the called
function; pipeline or accumulation only, and only if all readers are casts) and CreateFP16Cast. CheckApplyZero lets a
weight through in a pipeline that no other rank shares; `MicroStepAllGatherPass` then drops the AllGather and leaves the
cast. So there is one copy in half precision, from the first micro-batch to the last, and no policy reaches it.
Casts of gathered weights are in `graph.sharding.gather`. Without the parallel optimizer each micro-batch has casts of
its own.

Without lazy_inline all micro-batches are in one graph. No side effect stands between their reads of a weight, so
AutoMonadEliminator and the frontend's cse make one of equal casts, whatever their types.
"""

from dataclasses import replace

from mindswap.graph.model import Node
from mindswap.graph.ops import BOOKKEEPING_OPS
from mindswap.graph.sharding.gather import GATHER_MARK, GatheredStep, is_gathering, is_narrowing, weight_name


def share_casts(step: GatheredStep, is_inlined: bool = False) -> GatheredStep:
    """The step with casts of weights marked as made once, for all micro-batches.

    Those of gathered weights before the AllGather are so already; without lazy_inline (`is_inlined`) casts of any type
    are, also those behind an AllGather.
    """
    weights: dict[str, str] = {}  # name of a value -> the parameter that it is
    readers: dict[str, list[Node]] = {}
    for node in step.graph.forward:
        name = weight_name(node)
        if name and node.outputs and (is_inlined or node.outputs[0].dtype == "float32"):
            weights[node.name] = name
            continue
        for source in {weights[name] for name in node.inputs if name in weights}:
            if node.op == "TensorMove" or (is_inlined and is_gathering(node)):
                weights[node.name] = source
            elif node.op not in BOOKKEEPING_OPS:
                readers.setdefault(source, []).append(node)
    shared = {
        node.name
        for nodes in readers.values()
        for node in nodes
        if not is_gathering(node) and (node.op == "Cast" if is_inlined else all(map(is_narrowing, nodes)))
    }
    if not shared:
        return step
    forward = tuple(
        replace(node, attributes={**node.attributes, GATHER_MARK: False}) if node.name in shared else node
        for node in step.graph.forward
    )
    return replace(step, graph=replace(step.graph, forward=forward), once=step.once | shared)
