"""Application of decisions to cells and primitives, through MindSpore's own methods.

Nothing is imported from MindSpore here; the methods belong to the cells.
"""

import ast
import copy
import functools
import inspect
import logging
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from mindswap.errors import ApplyError
from mindswap.policy.applied import format_log_lines
from mindswap.policy.cell_tree import CellNode, Match, match_pattern
from mindswap.policy.formats.mindformers1.schema import RECOMPUTE_FLAGS, SELECT_OPTIONS, default_operators
from mindswap.policy.model import OpRecompute, OpSwap, Policy
from mindswap.policy.resolve import LayerDecisions, Treatment, resolve_layer, unique_matches

# Name of the cell that `Cell.recompute` adds, which is not part of the model.
RECOMPUTE_CELL = "_recompute_cell"


def apply_policy(
    layers: Sequence[Any], policy: Policy, logger: logging.Logger | None = None, indices: Sequence[int] | None = None,
    is_swap_per_call: bool = False,
) -> tuple[LayerDecisions, ...]:  # fmt: skip
    """Set a policy on the layers of a network, before its first compile; without swap nothing is changed.

    Args:
        layers: in order (`CellList` or any sequence of cells).
        policy: in normal form.
        logger: receives the log lines of the specification; default is the logger of this module.
        indices: index in the model of each layer, if `layers` are some of the layers of a model that passed
            `check_layers`; default all layers.
        is_swap_per_call: swap may differ between layers that share a cell, as in PyNative mode.

    Returns:
        The decisions for each layer.

    Raises:
        ApplyError: if a pattern matches nothing in any of its layers, or the policy treats a cell shared by several
            layers in two ways.
        PatternError: if a pattern is no regular expression.
    """
    if not policy.is_swap_enabled:
        return ()
    logger = logger or logging.getLogger(__name__)
    _unshare_primitives(layers)
    trees = [read_tree(layer) for layer in layers]
    if indices is None:
        indices = range(len(layers))
        check_layers(policy, len(layers))
    _check_patterns(policy, indices, trees, logger)
    decisions = tuple(resolve_layer(policy, index, tree) for index, tree in zip(indices, trees, strict=True))
    _check_shared(layers, decisions, is_swap_per_call)
    for layer, decisions_of_layer in zip(layers, decisions, strict=True):
        _apply_layer(layer, decisions_of_layer, policy)
        for line in format_log_lines(decisions_of_layer):
            logger.info(line)
    return decisions


def check_layers(policy: Policy, num_layers: int) -> None:
    """Check that the network has all layers that the policy names.

    Raises:
        ApplyError: if it does not.
    """
    layers = [policy.layer_recompute, policy.output_recompute]
    for entries in (policy.layer_swap, policy.op_swap, policy.select_recompute, policy.select_comm_recompute):
        layers += [entry.layers for entry in entries]
    out_of_range = sorted({index for entry in layers for index in entry.indices or () if index >= num_layers})
    if out_of_range:
        raise ApplyError(f"the network has layers 0 to {num_layers - 1}, the policy names {out_of_range}")


def read_tree(cell, name: str = "") -> CellNode:
    """Return the cells and primitives below `cell` as plain data."""
    # Private tables of MindSpore's Cell; public methods return primitives without their names.
    primitives = getattr(cell, "_primitives", {})
    children = [CellNode(key, value.name, is_primitive=True) for key, value in primitives.items() if value is not None]
    uncalled = find_uncalled(cell.__class__)
    children += [replace(read_tree(child, key), is_called=key not in uncalled) for key, child in _children(cell)]
    return CellNode(name, type(cell).__name__, children=tuple(children))


def cells_below(cell) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every cell below another with its path from there, parents first."""
    for name, child in _children(cell):
        yield (name,), child
        yield from (((name, *path), inner) for path, inner in cells_below(child))


def iterate_primitives(cell) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every primitive in a cell and below it, with its path."""
    for path, holder in (((), cell), *cells_below(cell)):
        for name, primitive in holder._primitives.items():
            if primitive is not None:
                yield (*path, name), primitive


def _children(cell) -> Iterator[tuple[str, Any]]:
    return ((name, child) for name, child in cell._cells.items() if child is not None and name != RECOMPUTE_CELL)


def _unshare_primitives(layers: Sequence[Any]) -> None:
    """Replace primitives that several layers share with copies, so that settings of one layer do not affect another.

    The routers of MindFormers 1.9.0 share one primitive for their gating (`GATING_ACTIVATION` of moe/router.py).
    """
    earlier_ids: set[int] = set()
    for layer in layers:
        layer_ids = set()
        for _, cell in layer.cells_and_names():
            if id(cell) in earlier_ids:  # a cell shared by layers keeps its primitives
                continue
            layer_ids.add(id(cell))
            for name, primitive in list(cell._primitives.items()):
                if primitive is not None and id(primitive) in earlier_ids:
                    setattr(cell, name, _clone_primitive(primitive))
                layer_ids.add(id(cell._primitives[name]))
        earlier_ids |= layer_ids


def _clone_primitive(primitive: Any) -> Any:
    """Return a copy with the same attributes; `Primitive._clone` of MindSpore fails for some, such as `BiasAdd`."""
    clone = copy.deepcopy(primitive)
    for name, value in primitive.attrs.items():
        clone.add_prim_attr(name, value)
    if hasattr(primitive, "instance_name"):
        clone.set_prim_instance_name(primitive.instance_name)
    return clone


def _check_shared(layers: Sequence[Any], decisions: Sequence[LayerDecisions], is_swap_per_call: bool) -> None:
    """Refuse a policy that treats a shared cell differently in two layers.

    Raises:
        ApplyError: because a setting of the cell would apply to both layers.
    """
    uses: dict[int, list[tuple[LayerDecisions, tuple[str, ...]]]] = {}
    for layer, decisions_of_layer in zip(layers, decisions, strict=True):
        for path, primitive in iterate_primitives(layer):
            uses.setdefault(id(primitive), []).append((decisions_of_layer, path))
    problems = {}
    for shared in uses.values():
        settings: dict[object, tuple[int, tuple[str, ...]]] = {}
        for decisions_of_layer, path in (
            shared if len({decisions_of_layer.layer_index for decisions_of_layer, _ in shared}) > 1 else ()
        ):
            decision = decisions_of_layer.decision_for(path)
            setting = (decision.treatment is Treatment.RECOMPUTE, None if is_swap_per_call else decision.prefetch)
            settings.setdefault(setting, (decisions_of_layer.layer_index, path))
        if len(settings) > 1:
            first, other_index = list(settings.values())[:2]
            problems[first[0], other_index[0]] = (first, other_index)
    if problems:
        lines = [f"    layer {layer_index}: {'.'.join(path)} is also layer {other_index}: {'.'.join(other_path)}"
                 for (layer_index, path), (other_index, other_path) in problems.values()]  # fmt: skip
        raise ApplyError(
            "layers share cells, and the policy treats the same cell in two ways:\n"
            + "\n".join(lines)
            + "\n    fix:     name all layers that share a cell, or none"
        )


def _check_patterns(policy: Policy, indices: Sequence[int], trees: Sequence[CellNode], logger: logging.Logger) -> None:
    """Refuse patterns that match nothing in any of their layers; of the default patterns, one must match.

    As in `mindswap check`, the default strategy must match something, whereas default operators to recompute need not;
    that is a warning.
    """
    for option in ("op_swap", *SELECT_OPTIONS):
        entries: Sequence[OpSwap | OpRecompute] = getattr(policy, option)
        unmatched = [entry.pattern for entry in entries if not _has_match(entry, indices, trees)]
        if _has_defaults(policy, option):
            has_none = len(unmatched) == len(entries)
            if has_none and option == "op_swap":
                raise ApplyError(
                    "the default strategy finds no flash attention in this network; name operators in op_swap"
                )
            if has_none:
                logger.warning("%s: none of the default operators is in this network, so it has no effect", option)
        elif unmatched:
            patterns = ", ".join(f"'{pattern}'" for pattern in dict.fromkeys(unmatched))
            raise ApplyError(f"{option} names no operator of this network: {patterns}")


def _has_match(entry: OpSwap | OpRecompute, indices: Sequence[int], trees: Sequence[CellNode]) -> bool:
    """Return whether an entry matches in one of its layers, or none of them is built."""
    layers = {tree for index, tree in zip(indices, trees, strict=True) if index in entry.layers}
    return not layers or any(match_pattern(entry.pattern, tree) for tree in layers)


def _has_defaults(policy: Policy, option: str) -> bool:
    """Return whether the patterns of an option are those that `True` represents."""
    if option == "op_swap":
        return policy.default_prefetch is not None
    patterns = {entry.pattern for entry in getattr(policy, option)}
    return any(patterns == set(default_operators(option, use_legacy)) for use_legacy in (True, False))


def _apply_layer(layer, decisions_of_layer: LayerDecisions, policy: Policy) -> None:
    _apply_recompute(layer, decisions_of_layer, policy)
    if decisions_of_layer.layer_prefetch is not None:
        layer.offload(backward_prefetch=decisions_of_layer.layer_prefetch)
    for swap in decisions_of_layer.op_swaps:
        for primitive in _primitives(layer, (swap.match,)):
            primitive._offload(backward_prefetch=swap.entry.prefetch)


def _apply_recompute(layer, decisions_of_layer: LayerDecisions, policy: Policy) -> None:
    if decisions_of_layer.is_fully_recomputed:
        options = _recompute_options(policy)
        if decisions_of_layer.is_output_recomputed:
            options["output_recompute"] = True
        layer.recompute(**options)
    for match in unique_matches(decisions_of_layer.recomputes):
        target = resolve_path(layer, match.path)
        if match.node.is_primitive:
            _recompute_primitive(target)
        else:
            target.recompute(**_recompute_options(policy))
    for match in unique_matches(decisions_of_layer.comm_recomputes):
        resolve_path(layer, match.path).add_prim_attr("recompute_comm_op", True)
    for primitive in _primitives(layer, unique_matches(decisions_of_layer.excludes)):
        _recompute_primitive(primitive, False)
    for primitive in _primitives(layer, unique_matches(decisions_of_layer.comm_excludes)):
        primitive.add_prim_attr("recompute_comm_op", False)


def _recompute_primitive(primitive, mode: bool = True) -> None:
    """Call the method of the class, because a primitive with settings has an attribute `recompute` of type bool."""
    type(primitive).recompute(primitive, mode)


def _recompute_options(policy: Policy) -> dict[str, bool]:
    """Return the options that differ from MindSpore's defaults; each option set modifies every primitive."""
    flags = {name: bool(getattr(policy, name)) for name in RECOMPUTE_FLAGS}
    return {name: value for name, value in flags.items() if value != RECOMPUTE_FLAGS[name]}


def resolve_path(cell, path: tuple[str, ...]) -> Any:
    """Return the cell or primitive at a path below a cell."""
    for name in path:
        cell = getattr(cell, name) if not name.isdecimal() else cell._cells[name]
    return cell


def _primitives(layer, matches: Iterable[Match]) -> Iterator[Any]:
    """Yield the matched primitives, including those below a matched cell."""
    for match in matches:
        target = resolve_path(layer, match.path)
        if match.node.is_primitive:
            yield target
        else:
            yield from (primitive for _, primitive in iterate_primitives(target))


# Cells of which a model calls only methods: `self.attention.cal_attn(...)` of interleaved Llama and TeleChat2.
#
# With lazy_inline, MindSpore recomputes the function of a marked cell (`FUNC_GRAPH_RECOMPUTE_K_GRAPH`). Such a cell has
# no function in the graph, so recompute of it has no effect, whereas the cells that it calls can be recomputed.


@functools.cache
def find_uncalled(cell_type: Any) -> frozenset[str]:
    """Return the attributes of a class of which only methods are used outside `__init__`, as far as source exists."""
    methods: set[str] = set()
    other_uses: set[str] = set()
    for node, parent in _reads_of_self(cell_type):
        (methods if isinstance(parent, ast.Attribute) else other_uses).add(node.attr)
    return frozenset(methods - other_uses)


def _reads_of_self(cell_type: type) -> Iterator[tuple[ast.Attribute, ast.AST]]:
    """Yield every `self.name` with its parent in the syntax tree."""
    for owner in cell_type.__mro__:
        if owner.__module__.partition(".")[0] in ("builtins", "mindspore"):
            continue
        try:
            source = ast.parse(textwrap.dedent(inspect.getsource(owner)))
        except (OSError, TypeError, SyntaxError):  # a class defined interactively or generated by a program
            continue
        for function in ast.walk(source):
            if isinstance(function, ast.FunctionDef) and function.name != "__init__":
                for parent in ast.walk(function):
                    for node in ast.iter_child_nodes(parent):
                        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                            yield node, parent
