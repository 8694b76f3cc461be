"""Two policies layer by layer, operator by operator: the judge of every conversion."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from mindswap.config.nodes import Document, show
from mindswap.config.render import document_from_data
from mindswap.config.section_edits import rewrite_section
from mindswap.config.step_settings import uses_pynative_mode
from mindswap.policy.applied import recomputed_operators
from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.formats.mindformers1.schema import RECOMPUTE_FLAGS, SELECT_OPTIONS
from mindswap.policy.model import ALL_LAYERS, ENTRY_FIELDS, Layers, Policy
from mindswap.policy.wording import format_names


def first_recompute_difference(before: Policy, after: Policy, num_layers: int, trees: LayerTrees | None) -> str:
    """First difference in recompute of two policies, in words; "" where they agree.

    Args:
        before: with swap on, or from `as_applied`.
        after: the same.
        num_layers: of the model.
        trees: the layers; None compares whole layers and flags only.
    """
    for flag in RECOMPUTE_FLAGS:
        if getattr(before, flag) != getattr(after, flag):
            return f"{flag} is {getattr(before, flag)} before and {getattr(after, flag)} after"
    for index in range(num_layers):
        for name, part in (("recompute", "layer_recompute"), ("output_recompute", "output_recompute")):
            is_in = [index in getattr(policy, part) for policy in (before, after)]
            if is_in[0] != is_in[1]:
                return f"layer {index} is in {name} only {'before' if is_in[0] else 'after'}"
        if trees is None:
            continue
        old = recomputed_operators(before, index, trees.layers[index])
        new = recomputed_operators(after, index, trees.layers[index])
        for what, was, will_be in zip(("recomputed", "recomputed in communication"), old, new, strict=True):
            for only, when in ((set(was) - set(will_be), "before"), (set(will_be) - set(was), "after")):
                if only:
                    return f"in layer {index} only {when} {what}: {format_names(sorted(only))}"
    return ""


def map_layers(policy: Policy, change: Callable[[Layers], Layers], options: Iterable[str] = ENTRY_FIELDS) -> Policy:
    """The policy with every set of layers changed: of recompute, and of the entries of some options."""
    entries: dict[str, Any] = {
        option: tuple(replace(entry, layers=change(entry.layers)) for entry in getattr(policy, option))
        for option in options
    }
    whole, output = change(policy.layer_recompute), change(policy.output_recompute)
    return replace(policy, layer_recompute=whole, output_recompute=output, **entries)


# A policy for a model with fewer layers: each layer that is left does what the layer did that it stands for.


def retained_layers(num_layers: int, num_kept: int) -> tuple[int, ...]:
    """Layers of the whole model that the layers of the cut one stand for: the first, the last, evenly between.

    Of 32 layers, 4 stand for 0, 10, 21 and 31.
    """
    if num_kept == 1:
        return (0,)
    return tuple((2 * i * (num_layers - 1) + num_kept - 1) // (2 * (num_kept - 1)) for i in range(num_kept))


def truncated_policy(policy: Policy, kept: tuple[int, ...]) -> Policy:
    """The policy for the layers that are left, of which each stands for one of `kept`; entries without a layer go."""

    def truncate(layers: Layers) -> Layers:
        if layers.indices is None:
            return layers
        return Layers(tuple(i for i, layer in enumerate(kept) if layer in layers))

    changed = map_layers(policy, truncate)
    left: dict[str, Any] = {name: [entry for entry in getattr(changed, name) if entry.layers] for name in ENTRY_FIELDS}
    return replace(changed, **left)


# A policy -> the sections of a configuration that say it.


def policy_sections(policy: Policy, data: Mapping[str, Any], num_layers: int) -> dict[str, dict[str, Any]]:
    """The sections of a policy, as they are written into a configuration; all layers become True.

    Keys of recompute_config with their default are left out where the file does not have them. With swap disabled
    nothing is recomputed.
    """
    whole = Layers(range(num_layers))
    short = map_layers(policy, lambda layers: ALL_LAYERS if layers == whole else layers, SELECT_OPTIONS)
    config = short.to_config()
    sections = {"swap_config": config["swap_config"]}
    present = data.get("recompute_config") or {}
    defaults = {"recompute": None, **dict.fromkeys(SELECT_OPTIONS, False), **RECOMPUTE_FLAGS}
    if policy.is_swap_enabled:
        recompute = {key: v for key, v in config["recompute_config"].items() if key in present or v != defaults[key]}
    else:
        recompute = {key: value or False for key, value in defaults.items() if key in present}
    if recompute or present:
        sections["recompute_config"] = recompute
    own = {key: value for key, value in (data.get("mindswap") or {}).items() if key != "output_recompute"}
    own |= config.get("mindswap", {})
    if own or data.get("mindswap"):
        sections["mindswap"] = own
    return sections


# What else has to change in a configuration in which swap gets enabled.

LEVEL_KEY = "memory_optimize_level"


def rewrite_for_swap(text: str, own: Document, whole: Document) -> str:
    """The text of a file with `context.memory_optimize_level` as swap needs it, and a comment that says so.

    The file says itself what is in `own`; `whole` has what it is based on, too.
    """
    node = whole.get("context", LEVEL_KEY)
    if not _blocks_swap(whole) or node is None:
        return text
    context = own.data().get("context") or {}
    comment = f"swap needs {LEVEL_KEY} O0; it was {show(node)}"
    return rewrite_section(text, "context", {**context, LEVEL_KEY: "O0"}, comment, own.file)


def with_swap_enabled(document: Document) -> Document:
    """The configuration with nothing but swap enabled, values at their places: to see whether a plan can be written."""
    data = document.data()
    changed = {**data, "swap_config": {"swap": True, "op_swap": []}, "recompute_config": {}}
    if _blocks_swap(document):
        changed["context"] = {**data["context"], LEVEL_KEY: "O0"}
    return document_from_data(changed, document.file, document)


def _blocks_swap(document: Document) -> bool:
    node = document.get("context", LEVEL_KEY)
    return node is not None and not node.is_null and node.value != "O0" and not uses_pynative_mode(document)
