"""Rules for recompute and swap that free no memory: all-gathered weights, communication, views of a tensor."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mindswap.config.findings import Finding, rule
from mindswap.config.problem import Level, Location
from mindswap.config.weight_sharding import read_weight_dtypes, read_weight_sharding
from mindswap.policy.cell_tree import CellNode, exact_pattern
from mindswap.policy.formats.mindformers1.settings import Statement
from mindswap.policy.model import Layers
from mindswap.policy.wording import format_layers, format_names
from mindswap.rules.context import Context

# Cells of MindFormers that cast their own weight.
LINEAR_CELLS = ("Linear", "ColumnParallelLinear", "RowParallelLinear")


@rule(Level.WARNING)
def gathered_weight(context: Context) -> Iterator[Finding]:
    r"""An entry names only casts of weights that the parallel optimizer gathers, where that frees nothing.

    With `enable_parallel_optimizer` and several data parallel ranks an AllGather makes a weight full, and backward
    reads the full weight. The effect of a policy depends on the step (docs/rule_effects.md):

    - Several micro-batches or pipeline stages, weights stored in float32: each rank casts its shard before the
      AllGather. The output of the AllGather is never recomputed, and `op_swap` has no name for it: no effect.
    - The same with weights stored in half precision, in another type than `compute_dtype`: the cast follows the
      AllGather, each layer keeps its copy, and both swap and recompute of the cast free it. No finding.
    - One stage and one micro-batch, swap on: the cast follows the AllGather. Its swap frees it; recompute keeps the
      weight as it is stored instead, which is not smaller.
    - With `optimizer_level: level3`, where backward gathers weights a second time, recompute of the cast frees it. No
      finding.

    PASS (weights in half precision, several micro-batches):
        use_parallel:     True
        parallel:         {enable_parallel_optimizer: True}
        parallel_config:  {data_parallel: 8}
        runner_config:    {gradient_accumulation_steps: 4}
        model:            {model_config: {param_init_type: float16, compute_dtype: bfloat16}}
        swap_config:      {swap: True, op_swap: []}
        recompute_config: {select_recompute: {'feed_forward\.w[123]\.cast': True}}

    FAIL (weights in float32):
        use_parallel:     True
        parallel:         {enable_parallel_optimizer: True}
        parallel_config:  {data_parallel: 8}
        runner_config:    {gradient_accumulation_steps: 4}
        model:            {model_config: {param_init_type: float32, compute_dtype: bfloat16}}
        swap_config:      {swap: True, op_swap: []}
        recompute_config: {select_recompute: {'feed_forward\.w[123]\.cast': True}}
    """
    sharding, coverage = read_weight_sharding(context.document), context.coverage
    if coverage is None or sharding.num_ranks < 2:
        return
    stored, computed = read_weight_dtypes(context.document)
    is_cast_after_gather = sharding.is_cast_after_gather
    if sharding.is_released or (not is_cast_after_gather and stored != "float32" and stored != computed):
        return  # recompute frees it
    swaps = () if is_cast_after_gather else context.settings.of("op_swap")
    for statement in (*swaps, *context.settings.of("select_recompute")):
        layer_classes = coverage.layers_by_class(statement.layers)
        named = {name for layer_class in layer_classes for name in coverage.operators(statement.pattern, layer_class)}
        casts = {
            name
            for layer_class in layer_classes
            for name in _primitives(coverage.layer_classes[layer_class], LINEAR_CELLS, "Cast")
        }
        if named and named <= casts:
            participle = "swapped" if statement.option == "op_swap" else "recomputed"
            consequence = f"would be kept in {stored} instead" if is_cast_after_gather else f"is never {participle}"
            message = (
                f"{statement.pattern_path}: {format_names(sorted(named))} "
                f"{'casts a weight' if len(named) == 1 else 'cast weights'} that the parallel optimizer gathers from "
                f"{sharding.num_ranks} ranks; backward reads the full weight, the output of the AllGather, "
                f"which {consequence}: this frees nothing"
            )
            fix = "delete it"
            if is_cast_after_gather:  # with accumulation, MindSpore 2.9 does not compile level3 with half precision
                fix += (
                    ", or name it in op_swap; parallel.parallel_optimizer_config: {optimizer_level: level3} releases "
                    "gathered weights"
                )
            yield Finding(statement.pattern_location, message, fix=fix)


def _primitives(cell: CellNode, cells: Sequence[str], type_name: str, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the paths of primitives of one type that are direct children of cells of some types.

    Args:
        cell: root of the tree.
        cells: types of the cells; empty for all cells.
        type_name: type of the primitives.
        path: path of the root.
    """
    for child in cell.children:
        if child.is_primitive and child.type_name == type_name and (not cells or cell.type_name in cells):
            yield ".".join((*path, child.name))
        yield from _primitives(child, cells, type_name, (*path, child.name))


@rule(Level.WARNING)
def optimizer_comm_recompute(context: Context) -> Iterator[Finding]:
    """`parallel_optimizer_comm_recompute: True` has no effect: MindSpore 2.9 only logs that zero3 replaces it.

    With `optimizer_level: level3` (zero3) weights that the parallel optimizer shards are released after forward and
    all-gathered a second time for backward, in recomputed layers and in all others.

    PASS:
        parallel: {parallel_optimizer_config: {optimizer_level: level3}}
        swap_config: {swap: True}

    FAIL:
        swap_config: {swap: True}
        recompute_config: {recompute: True, parallel_optimizer_comm_recompute: True}
    """
    # nn/cell.py of mindspore 2.9.0, `recompute`: a warning, and nothing calls `_parallel_optimizer_comm_recompute`.
    node = context.document.get("recompute_config", "parallel_optimizer_comm_recompute")
    if not context.settings.is_swap_enabled or node is None or node.value is not True:
        return
    sharding = read_weight_sharding(context.document)
    fix = "delete it; parallel_optimizer_config: {optimizer_level: level3} gathers weights again in backward"
    if sharding.is_released:
        fix = "delete it; optimizer_level: level3 gathers weights again in backward already"
    elif sharding.num_ranks < 2:
        fix = "delete it; the parallel optimizer gathers no weights here"
    path = "recompute_config.parallel_optimizer_comm_recompute"
    message = f"{path}: has no effect, MindSpore 2.9 only logs that zero3 replaces it"
    yield Finding(node.location, message, "False", fix)


@rule(Level.WARNING)
def comm_recompute(context: Context) -> Iterator[Finding]:
    r"""`select_comm_recompute` names no operator that gathers: in Llama that is the reshape of a linear layer.

    MindSpore 2.9.0 replaces this reshape by an AllGather, and recomputes the AllGather only if the reshape is
    recomputed. In dry runs with sequence parallelism `.*\.norm`, the default of `True`, changes nothing, with swap on
    or off (docs/rule_effects.md).

    PASS:
        swap_config:      {swap: True}
        recompute_config: {select_comm_recompute: ['attention\.w[qkv]\.reshape', 'feed_forward\.w[13]\.reshape']}

    FAIL:
        swap_config:      {swap: True}
        recompute_config: {select_comm_recompute: True}
    """
    coverage = context.coverage
    if coverage is None:
        return
    for statement in context.as_applied().settings.of("select_comm_recompute"):
        layer_classes = coverage.layers_by_class(statement.layers)
        named = {name for layer_class in layer_classes for name in coverage.operators(statement.pattern, layer_class)}
        reshapes = {
            name
            for layer_class in layer_classes
            for name in _primitives(coverage.layer_classes[layer_class], ("Linear",), "Reshape")
        }
        if named and reshapes and not named & reshapes:
            message = (
                f"{statement.pattern_path}: {format_names(sorted(named))}: no gather is before these, nothing is freed"
            )
            fix = f"delete it, or name the reshapes of linear layers that read what a norm gives: {sorted(reshapes)[0]}"
            yield Finding(statement.pattern_location, message, fix=fix)


@rule(Level.WARNING)
def kept_by_reshape(context: Context) -> Iterator[Finding]:
    r"""An entry of `select_recompute` names only operators whose output backward keeps as the output of a reshape.

    The linear layers of legacy models reshape their inputs and outputs. A reshape copies nothing: its output is the
    same memory, and backward keeps it. Therefore recompute of the preceding operator frees nothing unless the reshape
    is recomputed as well. The default operators of `select_recompute: True`, or of numbers of layers, are of this kind,
    with swap on and off (docs/rule_effects.md).

    PASS:
        model:            {model_config: {type: LlamaConfig, num_layers: 4}, arch: {type: LlamaForCausalLM}}
        recompute_config: {select_recompute: {'feed_forward\.mul': True, 'feed_forward\.w2\.reshape': True}}

    FAIL:
        model:            {model_config: {type: LlamaConfig, num_layers: 4}, arch: {type: LlamaForCausalLM}}
        recompute_config: {select_recompute: {'feed_forward\.mul': True}}
    """
    coverage, applied = context.coverage, context.as_applied()
    if coverage is None or not context.settings.use_legacy:  # newer models recompute their reshapes themselves
        return
    entries: dict[Location, _KeptEntry] = {}  # all default operators of an option have the same location
    for statement in applied.settings.of("select_recompute"):
        entry = entries.setdefault(statement.pattern_location, _KeptEntry(statement))
        for layer_class, indices in coverage.layers_by_class(statement.layers).items():
            reshapes = set(_primitives(coverage.layer_classes[layer_class], (), "Reshape"))
            named = coverage.operators(statement.pattern, layer_class)
            for layer in indices:
                kept_reshapes = reshapes - applied.recomputed_operators(layer)
                kept = _views_kept(named, coverage.trees.uses, kept_reshapes)
                if kept.keys() == named:
                    entry.reshapes |= kept
                    entry.layers.add(layer)
    for entry in entries.values():
        if entry.reshapes:
            yield _kept_finding(entry.statement, entry.reshapes, Layers(entry.layers))


@dataclass
class _KeptEntry:
    """An entry of `select_recompute` that frees nothing in some layers."""

    statement: Statement
    reshapes: dict[str, set[str]] = field(default_factory=dict)  # operator -> reshapes that keep its output
    layers: set[int] = field(default_factory=set)


def _views_kept(names: frozenset[str], uses: Mapping[str, Sequence[str]], views: set[str]) -> dict[str, set[str]]:
    """Map operators whose output is read by reshapes only to these reshapes."""
    return {name: set(uses[name]) for name in names if uses.get(name) and views.issuperset(uses[name])}


def _kept_finding(statement: Statement, kept: dict[str, set[str]], layers: Layers) -> Finding:
    reshapes = sorted(set().union(*kept.values()))
    message = (
        f"{statement.pattern_path}: backward keeps the output of {format_names(reshapes)}, which is the same memory as "
        f"that of {format_names(sorted(kept))}: recompute of it frees nothing in {format_layers(layers)}"
    )
    patterns = ", ".join(f"'{exact_pattern(name)}'" for name in (*sorted(kept), *reshapes))
    added = ", ".join(f"'{exact_pattern(name)}'" for name in reshapes)
    fix = f"name operators: {patterns}; or delete it" if statement.is_default else f"add {added}, or delete it"
    return Finding(statement.pattern_location, message, fix=fix)
