"""Rules for invalid values, and for settings without effect."""

import re
from collections.abc import Iterator

from mindswap.config.findings import Finding, rule
from mindswap.config.nodes import DocumentNode, is_int, key_text, show
from mindswap.config.problem import Level
from mindswap.policy.formats.mindformers1.read import NUM_LAYERS_KEYS, find_num_layers
from mindswap.policy.formats.mindformers1.schema import MAX_NUM_LAYERS, PREFETCH_DEFAULT, Expect
from mindswap.policy.formats.mindformers1.settings import InvalidValue
from mindswap.policy.wording import last_key
from mindswap.rules.context import Context
from mindswap.rules.mindformers1.keys import is_misspelled_switch

# Fix for a distance if no value can be suggested.
FIND_DISTANCE = "a number of operators, such as 10; mindswap plan finds the best one"
_NUMBER = re.compile(r"\d+(?:\.\d*)?(?:[eE]\+?\d)?", re.ASCII)
_INDEX = re.compile(r"\d{1,6}(?:-\d{1,6})?", re.ASCII)
_LAYERS = re.compile(r"\s*(-?\d{1,20})(?:\.0|\s*-\s*(-?\d{1,20}))?\s*", re.ASCII)


@rule(Level.ERROR)
def swap_not_bool(context: Context) -> Iterator[Finding]:
    """`swap` is neither True nor False.

    PASS: swap_config: {swap: True}
    FAIL (quotes make it a string): swap_config: {swap: 'True'}
    """
    for invalid in context.settings.parse_issues.simple_invalid_values:
        if invalid.path == "swap_config.swap":
            fix = f"swap: {context.settings.is_swap_enabled}"
            yield Finding(invalid.node.location, invalid.message, Expect.BOOL.value, fix)


@rule(Level.ERROR)
def bad_prefetch(context: Context) -> Iterator[Finding]:
    """A prefetch distance is not a positive integer.

    `backward_prefetch` and `default_prefetch` count operators, so the minimum is 1; `True` is not an integer.

    PASS: layer_swap: [{backward_prefetch: 20, layers: [0]}]
    FAIL: layer_swap: [{backward_prefetch: 0, layers: [0]}]
    """
    for invalid in context.settings.parse_issues.invalid_values_of(Expect.PREFETCH):
        reason = "is out of range" if invalid.node.kind == "an integer" else f"is {invalid.node.kind}"
        message = f"{invalid.path}: {show(invalid.node)} {reason}"
        suggestion = _suggest_distance(invalid.node.value)
        fix = f"{invalid.path.rpartition('.')[2]}: {suggestion}" if suggestion else FIND_DISTANCE
        yield Finding(invalid.node.location, message, invalid.expect.value, fix)


def _suggest_distance(value: object) -> int | None:
    """Return the probably intended number; None if it cannot be guessed."""
    if isinstance(value, str) and len(value) < 10 and _NUMBER.fullmatch(value.strip()):
        value = float(value)  # 1e2 is a string in YAML 1.1
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 1 <= value < 2**31:
        return int(value)
    return None


@rule(Level.WARNING)
def unused_default_prefetch(context: Context) -> Iterator[Finding]:
    """default_prefetch is set next to layer_swap or op_swap, where it has no effect.

    PASS: swap_config: {swap: True, default_prefetch: 10}
    FAIL: swap_config: {swap: True, default_prefetch: 10, layer_swap: [{backward_prefetch: 20, layers: [0]}]}
    """
    settings = context.settings
    node = context.document.get("swap_config", "default_prefetch")
    is_used = any(statement.is_default for statement in settings.swap)
    if node is None or node.is_null or not settings.is_swap_enabled or is_used:
        return
    if not node.location.line and node.value == PREFETCH_DEFAULT:
        return  # the default, which MindFormers adds itself
    message = "swap_config.default_prefetch: has no effect next to layer_swap or op_swap"
    yield Finding(node.location, message, fix="delete it; backward_prefetch of each entry counts")


@rule(Level.WARNING)
def swap_off(context: Context) -> Iterator[Finding]:
    """swap_config has settings besides `swap: False`, none of which has an effect.

    One warning at most, and never an error: with swap off nothing in swap_config may stop a run.

    PASS: swap_config: {swap: False}
    FAIL: swap_config: {swap: False, default_prefetch: 10}
    """
    section = context.document.get("swap_config")
    if section is None or context.settings.is_swap_enabled or context.settings.parse_issues.invalid_values:
        return
    unknown = context.settings.parse_issues.unknown_keys
    if any(is_misspelled_switch(context.document, key) for key in unknown):
        return  # an error that includes this
    unknown_keys = {key.entry.key for key in unknown}
    entries = [entry for entry in section.unique_entries() if entry.key not in unknown_keys]
    set_entries = [entry for entry in entries if not _is_without_effect(entry.key, entry.value)]
    if set_entries:
        first = min(set_entries, key=lambda entry: entry.location)
        state = "False" if section.get("swap") is not None else "not set"
        message = f"swap_config.{key_text(first.key)}: has no effect, because swap is {state}"
        yield Finding(first.location, message, fix="write 'swap: True', or delete it")


def _is_without_effect(key: object, node: DocumentNode) -> bool:
    if key == "default_prefetch":
        return node.value == PREFETCH_DEFAULT and not isinstance(node.value, bool)
    return key == "swap" or (key in ("layer_swap", "op_swap") and node.is_null)


@rule(Level.ERROR)
def number_of_layers(context: Context) -> Iterator[Finding]:
    """`model.model_config.num_layers` is set, but is not a number of layers.

    MindFormers refuses it, or fails later because of it, and layers and operator names cannot be checked without it.

    PASS: model: {model_config: {num_layers: 32}}
    FAIL: model: {model_config: {num_layers: "32"}}
    """
    written = ((key, context.document.get("model", "model_config", key)) for key in NUM_LAYERS_KEYS)
    key, node = next(((key, node) for key, node in written if node is not None and not node.is_null), ("", None))
    if node is None or find_num_layers(context.document) is not None:
        return
    number = str(node.value).strip() if isinstance(node.value, (str, float)) else ""
    digits = number.removesuffix(".0")
    is_number = digits.isdecimal() and 1 <= int(digits[:6]) <= MAX_NUM_LAYERS
    fix = f"{key}: {int(digits) if is_number else 'the number of layers of the model'}"
    reason = f"is {node.kind}" if node.kind != "an integer" else "is out of range"
    message = f"model.model_config.{key}: {show(node)} {reason}"
    yield Finding(node.location, message, f"an integer, 1 to {MAX_NUM_LAYERS}", fix, context.refusal_level)


@rule(Level.ERROR)
def wrong_type(context: Context) -> Iterator[Finding]:
    """A value has a type that its key does not accept.

    Integers must be integers: `1.0` and `'1'` are not, and neither is `True`.

    PASS: layer_swap: [{backward_prefetch: 20, layers: [0, 3]}]
    FAIL (`3.0` is a float): layer_swap: [{backward_prefetch: 20, layers: [0, 3.0]}]
    """
    for invalid in context.settings.parse_issues.simple_invalid_values:
        if invalid.expect is not Expect.PREFETCH and invalid.path != "swap_config.swap":  # other rules report those
            fix = _right_type(invalid, context.num_layers)
            yield Finding(invalid.node.location, invalid.message, invalid.expect.value, fix)


def _right_type(invalid: InvalidValue, num_layers: int | None) -> str:
    value = invalid.node.value
    key = last_key(invalid.path)
    word = value.strip().lower() if isinstance(value, str) else ""
    if invalid.expect is Expect.LAYER_INDEX:
        if isinstance(value, bool):
            return f"{key}: True" if value else "0, if the first layer is meant"
        return _suggest_layers(str(value), num_layers)
    if invalid.expect in (Expect.LAYERS, Expect.RECOMPUTE, Expect.SELECT):
        if _integer_text(value) or is_int(value):
            return _suggest_list(key, int(_integer_text(value) or value), invalid.expect, num_layers)
        if word in ("true", "all", "every"):
            return f"{key}: True"
        parts = value.replace(" ", "").split(",") if isinstance(value, str) else []
        if len(parts) > 1 and all(_INDEX.fullmatch(part) for part in parts):
            return f"{key}: [{', '.join(part if part.isdecimal() else repr(part) for part in parts)}]"
        if value is None or word in ("false", "none"):
            return "" if invalid.expect is Expect.LAYERS else f"{key}: False"
        if isinstance(value, str) and invalid.expect is Expect.SELECT:
            return f"{key}: ['{value}']"
    if invalid.expect is Expect.BOOL and word in ("true", "false"):
        return f"{key}: {word.title()}"
    return ""


def _suggest_list(key: str, number: int, expect: Expect, num_layers: int | None) -> str:
    """Suggest a list in place of a number: the index, and for recompute also that many layers, as with swap off."""
    limit = num_layers or MAX_NUM_LAYERS
    index = f"{key}: [{number}]" if 0 <= number < limit else ""
    if expect is Expect.LAYERS or not 1 <= number <= limit:
        return index
    counted = f"{key}: {'[0]' if number == 1 else f'[{chr(39)}0-{number - 1}{chr(39)}]'}, if {number} layers are meant"
    return f"{index}, if layer {number} is meant; {counted}" if index else counted


def _suggest_layers(text: str, num_layers: int | None) -> str:
    """Suggest a layer index (negative numbers count from the last layer), or a range in quotes, for a text.

    Returns:
        The index or range; advice in words if there is no such layer; "" for a text without a number.
    """
    match = _LAYERS.fullmatch(text)
    if match is None:
        return ""
    limit = num_layers or MAX_NUM_LAYERS
    low, high = sorted((int(match[1]), int(match[2] or match[1])))
    if match[2]:
        low, high = max(low, 0), min(high, limit - 1)
    elif low < 0 and num_layers:
        low = high = low + num_layers
    if 0 <= low <= high < limit:
        return f"'{low}-{high}'" if match[2] else str(low)
    return f"delete it; the last layer is {limit - 1}" if num_layers else "delete it; layers are counted from 0"


def _integer_text(value: object) -> str:
    """Return the integer that a float or string represents, as text; "" if it does not represent one."""
    if isinstance(value, str) and len(value) < 10 and value.strip().isdecimal():
        return str(int(value))
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e9:
        return str(int(value))
    return ""
