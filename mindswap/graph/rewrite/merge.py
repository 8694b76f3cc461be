"""Equal operators become one, as the compiler's common subexpression elimination makes them.

A graph in which every primitive carries its path shows what the model computes twice (the inputs of wq, wk and wv
are reshaped and cast by each of them). Without these tags the compiler computes it once, if the same is set on all
of them.
"""

import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from mindswap.graph.model import Graph, Node, Saved
from mindswap.graph.ops import RANDOM_OPS


def merge_equal(graph: Graph, settings_of: Callable[[Node], Hashable] = lambda node: None) -> Graph:
    """Merge the operators of forward that differ in their path only.

    Of equal ones the first is left, with the paths of all of them. Those of which `settings_of` says something else
    stay apart.
    """
    forward, name_of = _merge_forward(graph, settings_of)
    if not name_of:
        return graph
    parameter_of: dict[str, str] = {}  # what forward hands over -> its name in backward
    for saved in graph.saved:
        parameter_of.setdefault(name_of.get(saved.forward_name, saved.forward_name), saved.backward_name)
    for saved in graph.saved:
        name_of[saved.backward_name] = parameter_of[name_of.get(saved.forward_name, saved.forward_name)]
    backward = (node.renamed(name_of) for node in graph.backward)
    return replace(
        graph,
        forward=forward,
        backward=tuple(
            replace(node, origin=name_of[node.origin]) if node.origin in name_of else node for node in backward
        ),
        saved=tuple(map(Saved, parameter_of.keys(), parameter_of.values())),
    )


def _merge_forward(graph: Graph, settings_of: Callable[[Node], Hashable]) -> tuple[tuple[Node, ...], dict[str, str]]:
    """Operators that are left, and the name of what is gone -> the name of what is left.

    What has no path the compiler has merged already, but for members of tuples that are merged here.
    """
    survivors: dict[Hashable, Node] = {}
    name_of: dict[str, str] = {}
    attributes = _attributes(graph)
    paths: dict[str, dict[str, None]] = {}  # of each that is left, in order
    for node in graph.forward:
        own = node.renamed(name_of)
        key: Hashable = node.name
        if node.op == "TupleGetItem" or (node.paths and node.op not in RANDOM_OPS):
            key = (node.layer_index, node.op, own.inputs, node.outputs, attributes[node.name], settings_of(node))
        left = survivors.setdefault(key, own)
        if left is not own:
            name_of[node.name] = left.name
        if node.paths:
            paths.setdefault(left.name, {}).update(dict.fromkeys(node.paths))
    forward = tuple(
        replace(node, paths=tuple(paths[node.name])) if len(paths.get(node.name, ())) > 1 else node
        for node in survivors.values()
    )
    return forward, name_of


@functools.lru_cache(maxsize=4)  # a step is merged under thousands of policies
def _attributes(graph: Graph) -> Mapping[str, Hashable]:
    """What is set on each operator of forward, as something to compare."""
    return {
        node.name: tuple(sorted((name, repr(value)) for name, value in node.attributes.items()))
        for node in graph.forward
    }
