"""Rules for swap entries that have no effect, overlap, or conflict with recompute."""

from collections.abc import Iterator

from mindswap.config.findings import Finding, rule
from mindswap.config.problem import Level, Location
from mindswap.policy.cell_tree import split_pattern
from mindswap.policy.coverage import ADD, Coverage, cell_names
from mindswap.policy.formats.mindformers1.settings import Statement
from mindswap.policy.model import Layers
from mindswap.policy.wording import format_layers, format_names
from mindswap.rules.context import Context, FirstOfLayer, StatementIndex, StatementOverlap, shared_layers
from mindswap.rules.mindformers1.values import FIND_DISTANCE

# Upper limit of compiled operators, forward and backward, per operator of the cell tree: 2.6 for Llama, 2.9 for
# DeepSeek-V3 (configs/, MindSpore 2.9.0).
COMPILED_PER_OPERATOR = 3
# Upper limit of operators per layer if the model is not known.
MAX_LAYER_OPERATORS = 1000


@rule(Level.WARNING)
def nothing_swapped(context: Context) -> Iterator[Finding]:
    """Swap is on, but layer_swap and op_swap are empty, so nothing is swapped.

    The default strategy applies only if both are null or missing. Recompute in layer indices without swap is written
    with `op_swap: []`, so then there is no finding.

    PASS (the default strategy): swap_config: {swap: True}
    FAIL: swap_config: {swap: True, op_swap: []}
    """
    settings = context.settings
    has_recompute = any(statement.layers for statement in settings.recompute)
    is_unread = settings.parse_issues.invalid_values or settings.parse_issues.missing_keys
    if not settings.is_swap_enabled or settings.swap or has_recompute or is_unread:
        return
    for key in ("layer_swap", "op_swap"):
        node = context.document.get("swap_config", key)
        if node is not None and not node.is_null:
            message = f"swap_config.{key}: names nothing, and so the default strategy does not act: nothing is swapped"
            fix = f"delete '{key}' for the default strategy, or write 'swap: False'"
            yield Finding(node.location, message, fix=fix)
            return


@rule(Level.ERROR)
def conflicting_prefetch(context: Context) -> Iterator[Finding]:
    """Two entries set different prefetch distances for the same layer, or for the same operator of a layer.

    PASS:
        op_swap:
          - {op_name: attention, backward_prefetch: 20, layers: [0, 1]}
          - {op_name: attention, backward_prefetch: 10, layers: [2]}

    FAIL (20 or 10 in layer 1?):
        op_swap:
          - {op_name: attention, backward_prefetch: 20, layers: [0, 1]}
          - {op_name: attention, backward_prefetch: 10, layers: [1]}
    """
    groups: dict[tuple[object, ...], FirstOfLayer] = {}
    for statement in context.settings.swap:
        if statement.num_prefetch_ops is None or statement.prefetch_location is None:
            continue
        group = groups.setdefault((statement.option, statement.pattern), FirstOfLayer())
        earlier = group.find_different(statement.layers, statement.num_prefetch_ops)
        if earlier is not None:
            layers = format_layers(shared_layers(earlier.layers, statement.layers))
            message = (
                f"{statement.path}.backward_prefetch: {statement.num_prefetch_ops} for {layers}, "
                f"but {earlier.path} says {earlier.num_prefetch_ops} ({earlier.prefetch_location})"
            )
            fix = f"take {layers} out of one of the two"
            yield Finding(statement.prefetch_location, message, "one distance per layer and operator", fix)
        group.add(statement, statement.num_prefetch_ops)


@rule(Level.WARNING)
def far_prefetch(context: Context) -> Iterator[Finding]:
    """A prefetch distance is larger than the number of operators of forward and backward, so swap frees no memory.

    The distance is also the number of operators after which forward frees the memory, so nothing is offloaded.

    PASS: layer_swap: [{backward_prefetch: 20, layers: [0]}]
    FAIL (a layer has less than 1000 operators): layer_swap: [{backward_prefetch: 100000, layers: [0]}]
    """
    if context.num_layers is None or context.settings.pipeline.num_stages > 1:
        return
    reported: set[Location] = set()
    for statement in context.settings.swap:
        distance, location = statement.num_prefetch_ops, statement.prefetch_location
        if distance is None or location is None or location in reported:
            continue
        num_after = context.num_layers - min(statement.layers.resolve(context.num_layers), default=0)
        limit = COMPILED_PER_OPERATOR * num_after * _num_layer_operators(context)
        if distance > limit:
            reported.add(location)
            message = (
                f"{statement.path}.backward_prefetch: {distance}, and forward and backward have fewer than {limit} "
                "operators from there on: the memory is never freed"
            )
            if statement.is_default:
                message = message.replace(f"{statement.path}.backward", "swap_config.default")
            yield Finding(location, message, f"less than {limit}", FIND_DISTANCE)


def _num_layer_operators(context: Context) -> int:
    """Return the number of forward operators of the largest layer; an upper limit if the model is not known."""
    if context.coverage is None:
        return MAX_LAYER_OPERATORS
    layer_classes = range(len(context.coverage.layer_classes))
    return max(
        (len(context.coverage.operators(None, layer_class)) for layer_class in layer_classes),
        default=MAX_LAYER_OPERATORS,
    )


@rule(Level.WARNING)
def overlap(context: Context) -> Iterator[Finding]:
    r"""Two entries swap the same operator; the message names the one that applies.

    op_swap overrides layer_swap. In op_swap, a later pattern overrides an earlier
    one. A pattern that matches a cell applies to every operator in it.

    PASS:
        op_swap:
          - {op_name: attention, backward_prefetch: 20, layers: [0]}
          - {op_name: feed_forward, backward_prefetch: 10, layers: [0]}

    FAIL (wq is in attention; there 10 acts):
        op_swap:
          - {op_name: attention, backward_prefetch: 20, layers: [0]}
          - {op_name: 'attention\.wq', backward_prefetch: 10, layers: [0]}
    """
    settings = context.settings
    op_swap = [statement for statement in settings.of("op_swap") if not statement.is_default]
    for weaker, stronger, overlap in context.overlaps(settings.of("layer_swap"), op_swap):
        yield overlap_finding(weaker, stronger, overlap)
    first_place: dict[str | None, int] = {}
    for statement in op_swap:
        first_place.setdefault(statement.pattern, len(first_place))
    earlier = StatementIndex()
    for stronger in sorted(op_swap, key=lambda statement: first_place[statement.pattern]):
        for weaker in earlier.candidates(stronger.layers):
            shared = context.overlap(weaker, stronger) if weaker.pattern != stronger.pattern else None
            if shared is not None:
                yield overlap_finding(weaker, stronger, shared)
        earlier.add(stronger)


def overlap_finding(weaker: Statement, stronger: Statement, overlap: StatementOverlap) -> Finding:
    """Return a finding for two entries that swap the same operators; `stronger` applies."""
    operators = f" ({format_names(overlap.operators)})" if overlap.operators else ""
    if weaker.num_prefetch_ops == stronger.num_prefetch_ops:
        outcome, fix = "with the same distance", "leave it out, the other entry covers it"
    else:
        outcome = f"this entry applies, with backward_prefetch {stronger.num_prefetch_ops}"
        outcome += f" instead of {weaker.num_prefetch_ops}"
        fix = "name each operator in one entry"
    message = (
        f"{stronger.pattern_path}: '{stronger.pattern}' and {weaker.path} ({weaker.pattern_location}) swap the same "
        f"operators in {format_layers(overlap.layers)}{operators}; {outcome}"
    )
    return Finding(stronger.pattern_location, message, fix=fix)


@rule(Level.WARNING)
def recompute_wins(context: Context) -> Iterator[Finding]:
    r"""A swapped operator, or every operator of a swapped cell, is recomputed: its swap has no effect.

    Also if several entries together recompute the cell. Operators that an exclude option excludes from recomputation do
    not count. Recompute of a part of a swapped cell is no finding: the rest of the cell is swapped.

    PASS (the rest of attention is swapped):
        swap_config:      {swap: True, op_swap: [{op_name: attention, backward_prefetch: 10, layers: [0]}]}
        recompute_config: {select_recompute: {'attention\.wq': [0]}}

    FAIL (wq is in attention):
        swap_config:      {swap: True, op_swap: [{op_name: 'attention\.wq', backward_prefetch: 10, layers: [0]}]}
        recompute_config: {select_recompute: {attention: [0]}}
    """
    recompute = (*context.settings.of("recompute"), *context.settings.of("select_recompute"))
    ineffective: dict[int, dict[int, frozenset[str]]] = {}  # by swap statement
    for swap, winner, overlap in context.overlaps(context.settings.swap, recompute):
        layers_of_overlap, operators = overlap.layers, overlap.operators
        if context.coverage is None:
            if _names_part(winner, swap):
                continue
        else:
            if id(swap) not in ineffective:
                ineffective[id(swap)] = _recomputed_swaps(context, context.coverage, swap)
            common_layers = set(layers_of_overlap.resolve(context.coverage.num_layers))
            shared = {
                index: names.intersection(operators)
                for index, names in ineffective[id(swap)].items()
                if index in common_layers and not names.isdisjoint(operators)
            }
            if not shared:
                continue
            operators = tuple(sorted(frozenset().union(*shared.values())))
            layers_of_overlap = layers_of_overlap if len(shared) == len(common_layers) else Layers(shared)
        names_of_operators = format_names(operators) if operators else "what they share"
        layers = format_layers(layers_of_overlap)
        message = (
            f"{swap.pattern_path}: {winner.path} ({winner.location}) recomputes {names_of_operators} in {layers}, so "
            "swap has no effect there"
        )
        fix = f"take {layers} out of one of the two"
        if winner.option == "recompute" and winner.layers.indices is None:
            fix = "recompute: False, or delete swap_config: every layer is recomputed, so nothing is swapped"
        # The norms of the newer models keep more than full recompute keeps, so the form is none for them.
        if winner.option == "recompute" and context.coverage is not None and context.settings.use_legacy:
            cells = "|".join(cell_names(context.coverage.layer_classes))
            fix += (
                f"; or select_recompute of '({cells})' and op_swap of '{ADD}': then the inputs of the cells are swapped"
            )
        yield Finding(swap.pattern_location, message, fix=fix)


def _names_part(winner: Statement, swap: Statement) -> bool:
    """Return whether a recompute pattern matches only a part of a swapped cell or layer, judged by its levels."""
    if winner.pattern is None:
        return False
    return swap.pattern is None or len(split_pattern(winner.pattern)) > len(split_pattern(swap.pattern))


def _recomputed_swaps(context: Context, coverage: Coverage, swap: Statement) -> dict[int, frozenset[str]]:
    """Return, by layer, the operators in matches of a swap entry that are completely recomputed."""
    ineffective: dict[int, frozenset[str]] = {}
    operators_of_key: dict[
        tuple[int, frozenset[str]], frozenset[str]
    ] = {}  # most layers of a class have the same recompute
    for layer_class, layers in coverage.layers_by_class(swap.layers).items():
        parts = coverage.operators_by_match(swap.pattern, layer_class)
        for layer in layers:
            key = layer_class, context.recomputed_operators(layer)
            if key not in operators_of_key:
                operators_of_key[key] = frozenset().union(*(part for part in parts if part <= key[1]))
            ineffective[layer] = operators_of_key[key]
    return ineffective
