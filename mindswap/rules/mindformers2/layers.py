"""Rules for lists of layers in 2.x files, and for entries that other entries override."""

from collections.abc import Iterable, Iterator

from mindswap.config.findings import Finding
from mindswap.config.problem import Level
from mindswap.policy.formats.mindformers2.settings import Expect2x, LayerSpec, Target
from mindswap.policy.wording import index_runs
from mindswap.rules.context import Context2x, rule


@rule(Level.WARNING)
def no_layers(context: Context2x) -> Iterator[Finding]:
    """A list of layers is empty, so its entry has no effect. Upstream accepts it silently.

    PASS: op_swap: [{op_name: mlp, layers: [0]}]
    FAIL: op_swap: [{op_name: mlp, layers: []}]
    """
    # Other rules report lists or elements that could not be parsed.
    wrong = {
        m.path.rpartition("[")[0] for m in context.settings.parse_issues.invalid_values if m.expect is Expect2x.LAYER
    }
    wrong |= {invalid.path for invalid in context.settings.parse_issues.invalid_values}
    for target in context.settings.targets:
        if not target.specs and target.layers_path not in wrong and target.option != "full_recompute_layer":
            message = f"{target.layers_path}: the list is empty, so the entry has no effect"
            yield Finding(target.layers_location, message, fix="name layers, or delete the entry")


@rule(Level.ERROR)
def layer_order(context: Context2x) -> Iterator[Finding]:
    """A list of layers is not strictly ascending, or names a layer twice.

    PASS: layers: [0, '2-3']
    FAIL: layers: ['2-3', 0]
    """
    for target in context.settings.targets:
        for before, spec in zip(target.specs, target.specs[1:], strict=False):
            if spec.first <= before.last:
                problem = "is named twice" if spec.last >= before.first else "follows a larger one"
                message = f"{spec.path}: layer {spec.first} {problem} (before it: {before.text})"
                fix = f"write {index_runs(context.settings.layers_of(target))}"
                yield Finding(spec.location, message, "strictly ascending, each layer once", fix)
                break  # one for each list


@rule(Level.ERROR)
def layer_out_of_range(context: Context2x) -> Iterator[Finding]:
    """There is no such layer. The indices of layers for multi-token prediction follow those of the others.

    PASS (num_hidden_layers: 4): layers: ['0-2']
    FAIL (num_hidden_layers: 4; layers are counted from 0): layers: [4]
    """
    limit, num_mtp_layers = context.num_layers, context.settings.num_mtp_layers
    if limit is None:
        return
    source = f"num_hidden_layers: {limit - num_mtp_layers}"
    source += f", and {num_mtp_layers} for multi-token prediction" if num_mtp_layers else ""
    is_select_unchecked = bool(context.settings.of("full_recompute_layer"))
    for target in context.settings.targets:
        for spec in target.specs:
            if spec.last >= limit and not (target.option == "select_module" and is_select_unchecked):
                message = f"{spec.path}: there is no layer {spec.last}"
                yield Finding(spec.location, message, f"0 to {limit - 1} ({source})", _within(spec, limit))


def _within(spec: LayerSpec, limit: int) -> str:
    return (
        f"write '{spec.first}-{limit - 1}'" if spec.first < limit - 1 else f"delete it; the last layer is {limit - 1}"
    )


@rule(Level.ERROR)
def unchecked_select(context: Context2x) -> Iterator[Finding]:
    """`select_module` names layers that do not exist next to `full_recompute_layer`: upstream drops them silently.

    PASS (num_hidden_layers: 4): recompute: {mode: select, full_recompute_layer: [0], select_module: {mlp: ['1-3']}}
    FAIL (num_hidden_layers: 4): recompute: {mode: select, full_recompute_layer: [0], select_module: {mlp: ['1-9']}}
    """
    limit = context.num_layers
    if limit is None or not context.settings.of("full_recompute_layer"):
        return
    for target in context.settings.of("select_module"):
        for spec in target.specs:
            if spec.last >= limit:
                message = f"{spec.path}: there is no layer {spec.last}; upstream drops it without a word here"
                yield Finding(spec.location, message, f"0 to {limit - 1}", _within(spec, limit))


@rule(Level.ERROR)
def last_layers(context: Context2x) -> Iterator[Finding]:
    """A layer is swapped that has no layer `default_prefetch` positions later: the last layers cannot be swapped.

    The prefetch starts when backward of that later layer begins. So the largest layer is L - 1 - default_prefetch,
    where L counts the layers with those for multi-token prediction. With `mindswap: {swap_engine: mindswap}` they can.

    PASS (num_hidden_layers: 4): swap: {enable: True, default_prefetch: 1, layer_swap: [{layers: ['0-2']}]}
    FAIL (num_hidden_layers: 4): swap: {enable: True, default_prefetch: 1, layer_swap: [{layers: ['0-3']}]}
    """
    settings, num_layers = context.settings, context.num_layers
    prefetch = settings.prefetch
    if settings.is_own_engine or num_layers is None or prefetch is None or prefetch >= num_layers:
        return
    largest = num_layers - 1 - prefetch
    kept = "the last layer stays" if prefetch == 1 else f"the last {prefetch} layers stay"
    for target in (*settings.of("layer_swap"), *settings.of("op_swap")):
        too_large = next((spec for spec in target.specs if largest < spec.last < num_layers), None)
        if too_large is not None:
            swappable_layers = [index for index in settings.layers_of(target) if index <= largest]
            message = (
                f"{too_large.path}: layer {too_large.last} cannot be swapped: with default_prefetch {prefetch} "
                f"{kept} on the device"
            )
            fix = f"layers: {index_runs(swappable_layers)}" if swappable_layers else "delete the entry"
            yield Finding(too_large.location, message, f"0 to {largest} (of {num_layers} layers)", fix)


@rule(Level.ERROR)
def later_layer_swap(context: Context2x) -> Iterator[Finding]:
    """`layer_swap` has more than one entry; upstream takes the first and silently drops the others.

    With `mindswap: {swap_engine: mindswap}` all entries act.

    PASS: swap: {enable: True, layer_swap: [{layers: [0, 2]}]}
    FAIL: swap: {enable: True, layer_swap: [{layers: [0]}, {layers: [2]}]}
    """
    entries = context.settings.of("layer_swap")
    for entry in entries[1:] if not context.settings.is_own_engine else ():
        message = f"{entry.path}: has no effect; of layer_swap only the first entry acts"
        yield Finding(entry.location, message, "one entry", _suggest_merged_entry(context, entries))


@rule(Level.ERROR)
def repeated_op_name(context: Context2x) -> Iterator[Finding]:
    """Two entries of `op_swap` have the same `op_name`; the last one wins, and the layers of the others are dropped.

    PASS: swap: {enable: True, op_swap: [{op_name: mlp, layers: [0, 2]}]}
    FAIL: swap: {enable: True, op_swap: [{op_name: mlp, layers: [0]}, {op_name: mlp, layers: [2]}]}
    """
    by_name: dict[str | None, list[Target]] = {}
    for entry in context.settings.of("op_swap"):
        by_name.setdefault(entry.pattern, []).append(entry)
    for name, entries in by_name.items():
        *replaced, last = entries
        for entry in replaced:
            message = f"{entry.path}: has no effect; {last.path} ({last.location}) has the same op_name '{name}'"
            yield Finding(entry.location, message, "each op_name once", _suggest_merged_entry(context, entries))


def _suggest_merged_entry(context: Context2x, entries: Iterable[Target]) -> str:
    layers = {index for entry in entries for index in context.settings.layers_of(entry)}
    return f"one entry for all of them: layers: {index_runs(layers)}"


@rule(Level.WARNING)
def shared_inputs(context: Context2x) -> Iterator[Finding]:
    """MindFormers 2.0.0 is installed, and a swapped cell reads the rotary cos and sin: the other layers lose them.

    2.0.0 offloads all tensors that a swapped layer saves for backward, even if other layers read them; it keeps only
    attention masks. 2.1.0 keeps every input of the model's block on the device (MindFormers of 2026-07-18 and later,
    !8560; hyper-parallel issue 664).

    No release has the other known fault of swap, a loss of NaN: 2.0.0 has its correction (!8443). Builds of the source
    from 2026-04-29 to 2026-06-22 have it; their version is 1.9.0.

    PASS (mindformers 2.1.0): swap: {enable: True, layer_swap: [{layers: ['0-2']}]}
    FAIL (mindformers 2.0.0): swap: {enable: True, layer_swap: [{layers: ['0-2']}]}
    """
    node = context.document.get("swap", "enable")
    if node is not None and context.mindformers.startswith("2.0.") and context.effect.swaps_rotary:
        message = f"swap.enable: mindformers {context.mindformers} also frees rotary cos and sin, which all layers read"
        yield Finding(node.location, message, "mindformers 2.1.0 or later", "pip install mindformers==2.1.0")


@rule(Level.ERROR)
def nothing_swapped(context: Context2x) -> Iterator[Finding]:
    """Swap is enabled, and nothing is swapped: no `layer_swap` and no `op_swap`, or none that wraps anything.

    There is no default strategy in 2.x: `enable: True` alone does nothing.

    PASS: swap: {enable: True, layer_swap: [{layers: ['0-2']}]}
    FAIL: swap: {enable: True}
    """
    settings = context.settings
    is_unread = (
        any(invalid.path.startswith("swap") for invalid in settings.parse_issues.invalid_values)
        or settings.parse_issues.missing_keys
    )
    if not settings.is_swap_enabled or is_unread:
        return
    named = [target for target in (*settings.of("layer_swap")[:1], *settings.of("op_swap")) if target.specs]
    if named and (context.num_layers is None or context.effect.swaps_anything):
        return
    if any(spec.last >= (context.num_layers or spec.last + 1) for target in named for spec in target.specs):
        return  # the layers are wrong, which another rule reports
    message = "swap.enable: True, but no cell of any layer is swapped"
    allowed = "layer_swap: [{layers: [...]}] or op_swap: [{op_name: ..., layers: [...]}]"
    fix = "name layers, or write 'enable: False'"
    yield Finding(context.document.location_of("swap", "enable"), message, allowed, fix)
