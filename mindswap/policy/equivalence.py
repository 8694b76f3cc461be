"""Comparison of two policies by operator, and transformations of policies and configurations."""

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
    """Return the first difference in recompute of two policies in words; "" if they agree.

    Args:
        before: a policy with swap on, or from `as_applied`.
        after: likewise.
        num_layers: layers of the model.
        trees: cell tree of each layer; None compares full layers and flags only.
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
        for kind, old_operators, new_operators in zip(
            ("recomputed", "recomputed in communication"), old, new, strict=True
        ):
            for only, when in (
                (set(old_operators) - set(new_operators), "before"),
                (set(new_operators) - set(old_operators), "after"),
            ):
                if only:
                    return f"in layer {index} only {when} {kind}: {format_names(sorted(only))}"
    return ""


def map_layers(policy: Policy, change: Callable[[Layers], Layers], options: Iterable[str] = ENTRY_FIELDS) -> Policy:
    """Return the policy with a function applied to all its layer sets, of recompute and of entries of `options`."""
    entries: dict[str, Any] = {}
    for option in options:
        entries[option] = [replace(entry, layers=change(entry.layers)) for entry in getattr(policy, option)]
    layer_recompute, output_recompute = change(policy.layer_recompute), change(policy.output_recompute)
    return replace(policy, layer_recompute=layer_recompute, output_recompute=output_recompute, **entries)


# Policies for truncated models: each layer has the settings of the layer of the full model that it represents.


def retained_layers(num_layers: int, num_kept: int) -> tuple[int, ...]:
    """Choose the layers of the full model that a truncated one represents: first, last, and evenly between.

    Example:
        >>> retained_layers(32, 4)
        (0, 10, 21, 31)
    """
    if num_kept == 1:
        return (0,)
    return tuple((2 * i * (num_layers - 1) + num_kept - 1) // (2 * (num_kept - 1)) for i in range(num_kept))


def truncated_policy(policy: Policy, kept: tuple[int, ...]) -> Policy:
    """Return the policy of a truncated model whose layers represent `kept`; entries without layers are dropped."""

    def truncate(layers: Layers) -> Layers:
        if layers.indices is None:
            return layers
        return Layers(tuple(i for i, layer in enumerate(kept) if layer in layers))

    changed = map_layers(policy, truncate)
    remaining: dict[str, Any] = {}
    for name in ENTRY_FIELDS:
        remaining[name] = [entry for entry in getattr(changed, name) if entry.layers]
    return replace(changed, **remaining)


# Sections of a configuration for a policy.


def with_switches_of(settings: Policy, policy: Policy) -> Policy:
    """Return a policy with the switches of recompute (`RECOMPUTE_FLAGS`) of another one."""
    return replace(policy, is_swap_enabled=True, **{name: getattr(settings, name) for name in RECOMPUTE_FLAGS})


def policy_sections(policy: Policy, data: Mapping[str, Any], num_layers: int) -> dict[str, dict[str, Any]]:
    """Return the sections of a policy for a configuration; select options of all layers become True.

    Args:
        policy: the policy; with swap disabled, recompute is disabled as well.
        data: the configuration as plain data. Keys of `recompute_config` with their default value are added only if
            the configuration has them.
        num_layers: layers of the model.
    """
    all_layers = Layers(range(num_layers))
    compact = map_layers(policy, lambda layers: ALL_LAYERS if layers == all_layers else layers, SELECT_OPTIONS)
    config = compact.to_config()
    sections = {"swap_config": config["swap_config"]}
    present = data.get("recompute_config") or {}
    defaults = {"recompute": None, **dict.fromkeys(SELECT_OPTIONS, False), **RECOMPUTE_FLAGS}
    if policy.is_swap_enabled:
        recompute = {key: v for key, v in config["recompute_config"].items() if key in present or v != defaults[key]}
    else:
        recompute = {key: value or False for key, value in defaults.items() if key in present}
    if recompute or present:
        sections["recompute_config"] = recompute
    mindswap_section = {key: value for key, value in (data.get("mindswap") or {}).items() if key != "output_recompute"}
    mindswap_section |= config.get("mindswap", {})
    if mindswap_section or data.get("mindswap"):
        sections["mindswap"] = mindswap_section
    return sections


# Other changes of a configuration that enables swap.

LEVEL_KEY = "memory_optimize_level"


def rewrite_for_swap(text: str, file_document: Document, merged: Document) -> str:
    """Return the text of a file with the value of `context.memory_optimize_level` that swap needs, with a comment.

    Args:
        text: text of the file.
        file_document: the content of the file alone.
        merged: the configuration with the file that it is based on.
    """
    node = merged.get("context", LEVEL_KEY)
    if not _blocks_swap(merged) or node is None:
        return text
    context = file_document.data().get("context") or {}
    comment = f"swap needs {LEVEL_KEY} O0; it was {show(node)}"
    return rewrite_section(text, "context", {**context, LEVEL_KEY: "O0"}, comment, file_document.file)


def with_swap_enabled(document: Document) -> Document:
    """Return the configuration with only swap enabled and locations kept, to check whether a plan can be written."""
    changed = {**document.data(), "swap_config": {"swap": True, "op_swap": []}, "recompute_config": {}}
    return document_from_data(changed | context_for_swap(document), document.file, document)


def context_for_swap(document: Document) -> dict[str, Any]:
    """Return the section `context` with the memory level that swap needs; empty if the configuration has no other."""
    return {"context": {**document.data()["context"], LEVEL_KEY: "O0"}} if _blocks_swap(document) else {}


def _blocks_swap(document: Document) -> bool:
    node = document.get("context", LEVEL_KEY)
    return node is not None and not node.is_null and node.value != "O0" and not uses_pynative_mode(document)
