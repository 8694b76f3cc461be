"""Rules for lists of layers: none, unknown, repeated, not recomputed."""

from collections.abc import Iterator

from mindswap.check.context import Context, FirstOfLayer, shared_layers
from mindswap.config.problem import Level, Location
from mindswap.config.rules import Finding, rule
from mindswap.policy.schema import MAX_NUM_LAYERS, Expect
from mindswap.policy.words import format_indices, format_layers, name_indices


@rule(Level.WARNING)
def no_layers(context: Context) -> Iterator[Finding]:
    """An entry of layer_swap or op_swap names no layer, so it has no effect.

    PASS: layer_swap: [{backward_prefetch: 20, layers: [0]}]
    FAIL: layer_swap: [{backward_prefetch: 20, layers: []}]
    """
    misread = {misfit.path.partition(".layers")[0] for misfit in context.settings.misfits}
    incomplete = {missing.path for missing in context.settings.missing_keys}
    for statement in context.settings.swap:
        is_read = statement.path not in misread and statement.path not in incomplete
        if is_read and not statement.layers and not statement.layer_refs:
            message = f"{statement.layers_path}: names no layer, so this entry has no effect"
            yield Finding(statement.location, message, Expect.LAYERS.value, "name layers, or delete the entry")


@rule(Level.ERROR)
def layer_out_of_range(context: Context) -> Iterator[Finding]:
    """A layer index is negative, or there is no such layer.

    PASS (num_layers: 4): layers: [0, 3]
    FAIL (num_layers: 4; layers are counted from 0): layers: [1, 4]
    """
    limit = context.num_layers or MAX_NUM_LAYERS
    known_from = f" (num_layers: {limit})" if context.num_layers else ""
    wrong: dict[tuple[str, Location], set[int]] = {}
    for statement in context.settings.statements:
        for ref in statement.layer_refs:
            if not 0 <= ref.index < limit:
                wrong.setdefault((statement.layers_path, ref.location), set()).add(ref.index)
    for (path, location), indices in wrong.items():
        what = "is no layer" if len(indices) == 1 else "are no layers"
        message = f"{path}: there {what} {format_indices(indices)}"
        meant = [index + limit for index in sorted(indices) if index + limit >= 0]
        is_negative = min(indices) < 0 and meant and context.num_layers
        last = f"delete it; the last layer is {limit - 1}" if context.num_layers else "delete it"
        fix = f"count from the front: {format_indices(meant)}" if is_negative else last
        yield Finding(location, message, f"0 to {limit - 1}{known_from}", fix)


@rule(Level.WARNING)
def repeated_layer(context: Context) -> Iterator[Finding]:
    """A layer is named twice for the same purpose; the second time has no effect.

    PASS: layers: [0, 1, 3]
    FAIL: layers: [0, 1, 1]
    """
    groups: dict[tuple[object, ...], FirstOfLayer] = {}
    for number, statement in enumerate(context.settings.statements):
        seen: set[int] = set()
        for ref in statement.layer_refs:
            if ref.index in seen:
                message = f"{statement.layers_path}: layer {ref.index} appears twice"
                yield Finding(ref.location, message, "each layer once", f"delete one {ref.index}")
            seen.add(ref.index)
        group = groups.setdefault((statement.option, statement.pattern, statement.num_prefetch_ops), FirstOfLayer())
        earlier = group.other(statement.layers, number)
        if earlier is not None:
            layers = shared_layers(earlier.layers, statement.layers)
            message = f"{statement.path}: {earlier.path} says the same for {format_layers(layers)}"
            yield Finding(statement.pattern_location, message, fix="delete one of them")
        group.add(statement, number)


@rule(Level.WARNING)
def select_in_recomputed_layer(context: Context) -> Iterator[Finding]:
    """An operator is selected for recomputation in a layer that is recomputed whole: no effect.

    PASS: recompute_config: {recompute: [0], select_recompute: {feed_forward: [1]}}
    FAIL: recompute_config: {recompute: [0], select_recompute: {feed_forward: [0, 1]}}
    """
    selected = (*context.settings.of("select_recompute"), *context.settings.of("select_comm_recompute"))
    for whole in context.settings.of("recompute"):
        for statement in selected:
            layers = shared_layers(whole.layers, statement.layers)
            if layers:
                where = format_layers(layers)
                message = f"{statement.path}: recompute takes {where} whole, so this has no effect there"
                yield Finding(statement.pattern_location, message, fix=f"take {where} out")


@rule(Level.ERROR)
def output_recompute(context: Context) -> Iterator[Finding]:
    """output_recompute names layers that are not recomputed whole, or stands with a model that does not compile so.

    `mindswap: {output_recompute: LAYERS}` keeps not even the output of a recomputed layer: backward computes it
    again for the layer that follows. MindSpore 2.9 compiles that for networks whose layers give one tensor
    (the legacy models), and stops at the newer models of MindFormers.

    PASS:
        recompute_config: {recompute: [0, 1, 2, 3]}
        mindswap: {output_recompute: [0, 2]}

    FAIL (layer 2 is not recomputed):
        recompute_config: {recompute: [0, 1]}
        mindswap: {output_recompute: [0, 2]}
    """
    recomputed = [statement.layers for statement in context.settings.of("recompute")]
    for statement in context.settings.of("output_recompute"):
        if not statement.layers:
            continue
        if not context.settings.use_legacy:
            message = f"{statement.path}: MindSpore 2.9 cannot compile it with the models of use_legacy: False"
            yield Finding(statement.location, message, fix="delete it; every layer then keeps its input")
            continue
        indices = statement.layers.resolve(context.num_layers or 0)
        alone = [index for index in indices if not any(index in layers for layers in recomputed)]
        if alone:
            message = f"{statement.path}: recompute does not have {name_indices('layer', alone)}"
            allowed = "layers of recompute_config.recompute"
            yield Finding(statement.location, message, allowed, "add them to recompute")
