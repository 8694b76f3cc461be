"""Rules for invalid values in 2.x files, and for values that the machine does not support."""

import re
from collections.abc import Iterator

from mindswap.config.findings import Finding
from mindswap.config.limits import PYNATIVE_LIMITS, find_excess
from mindswap.config.nodes import show
from mindswap.config.problem import Level
from mindswap.policy.formats.mindformers1.settings import InvalidValue
from mindswap.policy.formats.mindformers2.settings import SECTION_KEYS, Expect2x
from mindswap.policy.wording import closest_names, last_key
from mindswap.rules.context import Context2x, rule
from mindswap.rules.mindformers1.characters import find_wide_characters

RANGE = re.compile(r"\s*(\d{1,6})\s*(?:-|~|:|to|\.\.+)\s*(\d{1,6})\s*", re.ASCII)
SUGGESTED_MODES = {"none": "None", "false": "None", "off": "None", "true": "full", "all": "full"}
# In layers; a larger distance was probably meant to count operators.
MAX_USUAL_PREFETCH = 4


@rule(Level.ERROR)
def wrong_type(context: Context2x) -> Iterator[Finding]:
    """A value has a type that its key does not accept; other rules report prefetch, mode, mappings and `exclude_op`.

    PASS: swap: {enable: True, layer_swap: [{layers: ['0-2']}]}

    FAIL (`layers` must be a list; there is no `True` for every layer in 2.x):
        swap: {enable: True, layer_swap: [{layers: True}]}
    """
    elsewhere = (Expect2x.PREFETCH, Expect2x.MODE, Expect2x.EXCLUDE, Expect2x.LAYER)
    for invalid in context.settings.parse_issues.simple_invalid_values:
        if invalid.expect in elsewhere or _is_single_mapping(invalid):
            continue
        yield Finding(
            invalid.node.location,
            invalid.message,
            invalid.expect.value,
            _right_type(invalid, context),
        )


def _right_type(invalid: InvalidValue, context: Context2x) -> str:
    key, value = last_key(invalid.path), invalid.node.value
    if invalid.expect is Expect2x.BOOL:
        return f"{key}: {str(value).strip().lower() in ('yes', 'on', 'true', '1', 'y')}"
    if invalid.expect is Expect2x.LAYERS:
        if value is True and context.num_layers is not None:
            num_excluded = (context.settings.prefetch or 1) if invalid.path.startswith("swap") else 0
            return f"{key}: ['0-{max(context.num_layers - 1 - num_excluded, 0)}']"
        return f"{key}: [{show(invalid.node)}]" if isinstance(value, (int, str)) and value is not True else ""
    if invalid.expect is Expect2x.PATTERN and invalid.node.items:
        return "one entry for each name"
    if invalid.expect is Expect2x.SECTION and invalid.path == "swap":
        return "swap: {enable: True, layer_swap: [{layers: [...]}]}" if value is True else "swap: {enable: False}"
    if invalid.expect is Expect2x.MODULES and invalid.node.items:
        return "write each path with its layers: {mlp: ['0-3']}"
    return ""


@rule(Level.ERROR)
def too_large(context: Context2x) -> Iterator[Finding]:
    """A number of layers, experts or tokens of the model is beyond any model.

    PASS: model: {num_hidden_layers: 4}
    FAIL: model: {num_hidden_layers: 4000000000}
    """
    yield from find_excess(context.document, PYNATIVE_LIMITS)


@rule(Level.ERROR)
def single_mapping(context: Context2x) -> Iterator[Finding]:
    """`layer_swap` or `op_swap` is one mapping instead of a list. Its docstring allows that, its validator does not.

    PASS: swap: {enable: True, layer_swap: [{layers: [0]}]}
    FAIL: swap: {enable: True, layer_swap: {layers: [0]}}
    """
    for invalid in context.settings.parse_issues.simple_invalid_values:
        if _is_single_mapping(invalid):
            fix = f"{last_key(invalid.path)}: [{show(invalid.node)}]"
            message = f"{invalid.path}: one mapping; it must be a list"
            yield Finding(invalid.node.location, message, invalid.expect.value, fix)


def _is_single_mapping(invalid: InvalidValue) -> bool:
    return invalid.expect is Expect2x.ENTRIES and invalid.node.entries is not None


@rule(Level.ERROR)
def exclude_op_form(context: Context2x) -> Iterator[Finding]:
    """`exclude_op` is a list: that was its form in MindFormers 2.0.0; since 2.1.0 it is a mapping of paths to layers.

    PASS: recompute: {mode: full, full_recompute_layer: [0], exclude_op: {mlp: [0]}}
    FAIL: recompute: {mode: full, full_recompute_layer: [0], exclude_op: [MatMul]}
    """
    for invalid in context.settings.parse_issues.invalid_values_of(Expect2x.EXCLUDE):
        message = f"{invalid.path}: {show(invalid.node)} is {invalid.node.kind}; mindformers 2.1.0 takes a mapping"
        fix = "exclude_op: {path: [layers]}; in 2.0.0 these were parts of operator names, which do not convert"
        yield Finding(invalid.node.location, message, invalid.expect.value, fix)


@rule(Level.ERROR)
def recompute_mode(context: Context2x) -> Iterator[Finding]:
    """`recompute.mode` is not one of the three words. `None` is the bare word; `null` and `~` are refused.

    PASS: recompute: {mode: None}
    FAIL: recompute: {mode: null}
    """
    for invalid in context.settings.parse_issues.invalid_values_of(Expect2x.MODE):
        value = invalid.node.value
        suggestion = SUGGESTED_MODES.get(str(value).strip().lower())
        if suggestion is None and isinstance(value, str):
            suggestion = next(iter(closest_names(value, ("None", "full", "select"), min_similarity=0.5)), None)
        message = f"recompute.mode: {show(invalid.node)} is not a mode"
        yield Finding(invalid.node.location, message, invalid.expect.value, f"mode: {suggestion}" if suggestion else "")


@rule(Level.ERROR)
def bad_layer(context: Context2x) -> Iterator[Finding]:
    """An element of a list of layers is neither a number nor an ascending range. No blanks, no minus, no `True`.

    PASS: layers: [0, '2-3', 5-6]
    FAIL: layers: ['0 - 3']
    """
    for invalid in context.settings.parse_issues.invalid_values_of(Expect2x.LAYER):
        message = f"{invalid.path}: {show(invalid.node)} names no layers"
        fix = _suggest_layers(invalid.node.value, context)
        yield Finding(invalid.node.location, message, invalid.expect.value, fix)


def _suggest_layers(value: object, context: Context2x) -> str:
    if isinstance(value, float) and value.is_integer() and 0 <= value < 1e9:
        return f"write {int(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value < 0 <= (context.num_layers or 0) + value:
        return f"count from the front: {(context.num_layers or 0) + value}"
    if str(value).lstrip().startswith("-"):
        return "delete it; layers are counted from 0"
    match = RANGE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return ""
    low, high = sorted((int(match[1]), int(match[2])))
    return f"write '{low}-{high}'"


@rule(Level.ERROR)
def bad_prefetch(context: Context2x) -> Iterator[Finding]:
    """`default_prefetch` is not an integer from 1 to the number of layers less one; `True` and `'1'` are not.

    PASS: swap: {enable: True, default_prefetch: 1}
    FAIL: swap: {enable: True, default_prefetch: 0}
    """
    limit, prefetch = context.num_layers, context.settings.prefetch
    allowed = f"an integer from 1 to {max(limit - 1, 1)} (layers)" if limit is not None else Expect2x.PREFETCH.value
    for invalid in context.settings.parse_issues.invalid_values_of(Expect2x.PREFETCH):
        message = f"{invalid.path}: {show(invalid.node)} is not a distance in layers"
        yield Finding(invalid.node.location, message, allowed, "default_prefetch: 1")
    node = context.document.get("swap", "default_prefetch") or context.document.get("swap", "enable")
    if not context.settings.is_swap_enabled or node is None or limit is None or prefetch is None or prefetch < limit:
        return
    if limit == 1:
        message = "swap: a model of one layer cannot be swapped"
        yield Finding(node.location, message, "two layers or more", "enable: False")
    else:
        message = f"swap.default_prefetch: {prefetch} layers, but the model has {limit}"
        yield Finding(node.location, message, allowed, "default_prefetch: 1")


@rule(Level.WARNING)
def prefetch_unit(context: Context2x) -> Iterator[Finding]:
    """`default_prefetch` is large: it counts layers, not operators as its description in MindFormers 2.1.0 states.

    It also delays offloading after forward, so up to default_prefetch + 1 swapped layers are on the device at once.

    PASS: swap: {enable: True, default_prefetch: 1, layer_swap: [{layers: [0]}]}
    FAIL: swap: {enable: True, default_prefetch: 10, layer_swap: [{layers: [0]}]}
    """
    prefetch = context.settings.prefetch or 0
    node = context.document.get("swap", "default_prefetch")
    if context.settings.is_swap_enabled and node is not None and prefetch > MAX_USUAL_PREFETCH:
        message = (
            f"swap.default_prefetch: {prefetch} layers (not operators): up to {prefetch + 1} swapped layers are on "
            "the device at once"
        )
        yield Finding(node.location, message, "1 or 2 is usual", "default_prefetch: 1")


@rule(Level.WARNING)
def cpu_target(context: Context2x) -> Iterator[Finding]:
    """Swap is enabled on a CPU target, where all memory is host memory and nothing is offloaded.

    PASS:
        context: {device_target: Ascend}
        swap: {enable: True, layer_swap: [{layers: [0]}]}

    FAIL:
        context: {device_target: CPU}
        swap: {enable: True, layer_swap: [{layers: [0]}]}
    """
    node = context.document.get("context", "device_target")
    if context.settings.is_swap_enabled and node is not None and str(node.value).upper() == "CPU":
        message = "context.device_target: CPU, where swap has no effect"
        yield Finding(node.location, message, "Ascend", "device_target: Ascend")


@rule(Level.ERROR)
def pipeline(context: Context2x) -> Iterator[Finding]:
    """Swap is enabled with pipeline stages: MindFormers 2.x refuses that, mindswap's own executor does not.

    PASS:
        parallelism: {pipeline_parallel: 1}
        swap: {enable: True, layer_swap: [{layers: [0]}]}

    FAIL:
        parallelism: {pipeline_parallel: 2}
        swap: {enable: True, layer_swap: [{layers: [0]}]}
    """
    node = context.document.get("parallelism", "pipeline_parallel")
    num_stages = context.document.count("parallelism", "pipeline_parallel")
    settings = context.settings
    if settings.is_swap_enabled and not settings.is_own_engine and node is not None and num_stages > 1:
        message = f"parallelism.pipeline_parallel: {num_stages} stages, but swap works without stages only"
        fix = "mindswap: {swap_engine: mindswap}, or pipeline_parallel: 1, or swap.enable: False and recompute instead"
        yield Finding(node.location, message, "1 with swap", fix)


@rule(Level.ERROR)
def wide_character(context: Context2x) -> Iterator[Finding]:
    """A key or value has a character that looks like YAML and is text to it: `，`, `：`, `‘’`, `　`, `２`.

    An error in `swap`, `recompute` and `recompute_comm`, a warning elsewhere.

    PASS: swap: {enable: True, layer_swap: [{layers: ['0-2']}]}
    FAIL: swap: {enable: True, layer_swap: [{layers: ['0–2']}]}
    """
    yield from find_wide_characters(context.document, tuple(SECTION_KEYS), Level.ERROR)
