"""Write a plan into the user's YAML: swap and recompute settings in layer indices, in few entries, with a comment."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mindswap.config.nodes import Document
from mindswap.config.render import document_from_data
from mindswap.config.section_edits import rewrite_section
from mindswap.planner.problem import Plan
from mindswap.planner.recompute_counts import counted_sections
from mindswap.policy.cell_tree import SEPARATOR, CellNode, match_pattern, split_pattern
from mindswap.policy.equivalence import context_for_swap, policy_sections
from mindswap.policy.model import ENTRY_FIELDS, Layers, OpRecompute, OpSwap, Policy
from mindswap.units import format_bytes, format_time

# Comment of a plan that only recomputes and that counts cannot express. Without `op_swap` MindFormers swaps its default
# operators.
NOTHING_IS_SWAPPED = (
    "nothing is swapped; with swap: False MindFormers takes no lists of layers, or compiles another step than planned"
)
# Limit of alternatives in one part of a pattern, for readability.
MAX_ALTERNATIVES = 4


def write_plan(
    text: str, document: Document, plan: Plan, num_layers: int, device_title: str, budget: Mapping[str, Any]
) -> str:
    """Return the configuration with the policy of a plan; the rest is unchanged.

    Args:
        text: YAML text.
        document: parsed text.
        plan: plan with a policy from `compact_policy`.
        num_layers: layers of the model.
        device_title: device of the plan.
        budget: settings of `mindswap:` with which `simulate`, `check`, `dryrun` and `plan` then compare the file; empty
            if it has the budget of the plan.

    Raises:
        PolicyError: if the way the text is written does not allow the edit.
    """
    data = document.data()
    sections = plan_sections(plan.policy, document, num_layers)
    if budget:
        mindswap_section = sections["mindswap"] if "mindswap" in sections else data.get("mindswap") or {}
        sections = sections | {"mindswap": {**mindswap_section, **budget}}
    for name, value in sections.items():
        comment = plan_comment(plan, device_title) if name == "swap_config" else None
        if comment and value.get("op_swap") == []:
            comment += f"\n{NOTHING_IS_SWAPPED}"
        text = rewrite_section(text, name, value, comment, document.file)
    return text


def plan_sections(policy: Policy, document: Document, num_layers: int) -> dict[str, dict[str, Any]]:
    """Return the sections of a plan: counts with swap off for a plan that only recomputes, if they can express it.

    Args:
        policy: policy of the plan.
        document: configuration.
        num_layers: layers of the model.
    """
    counted = counted_sections(policy, document, num_layers)
    return counted or policy_sections(written_policy(policy), document.data(), num_layers)


def planned_document(policy: Policy, document: Document, num_layers: int) -> Document:
    """Return the configuration with a policy, as a plan writes it. Arguments as of `plan_sections`."""
    sections = plan_sections(policy, document, num_layers)
    context = {} if is_written_without_swap(policy, document, num_layers) else context_for_swap(document)
    return document_from_data({**document.data(), **context, **sections}, document.file)


def is_written_without_swap(policy: Policy, document: Document, num_layers: int) -> bool:
    """Return whether the configuration has `swap: False` with a policy: it keeps everything, or counts express it.

    Args:
        policy: the policy.
        document: configuration that it is written into.
        num_layers: layers of the model.
    """
    return not written_policy(policy).is_swap_enabled or counted_sections(policy, document, num_layers) is not None


def written_policy(policy: Policy) -> Policy:
    """Return the policy to write: one that keeps every activation is written as `swap: False`."""
    changes_nothing = not any(getattr(policy, name) for name in ENTRY_FIELDS) and not policy.layer_recompute
    return Policy(is_swap_enabled=False) if changes_nothing else policy


def memory_setting(size_bytes: int) -> dict[str, Any]:
    """Return the budget of a card as a setting of `mindswap:`; rounded up, so that the plan fits."""
    return {"memory": _size_text(size_bytes)}


def _size_text(size_bytes: int) -> str:
    return f"{size_bytes // 2**30}GiB" if size_bytes % 2**30 == 0 else f"{-(-size_bytes // 2**20)}MiB"


def plan_comment(plan: Plan, device_title: str) -> str:
    """Return the comment above the section of a plan."""
    slower = f"{100 * plan.slowdown:.1f} % over keeping every activation"
    return (
        f"plan for {format_bytes(plan.budget_bytes)} per card on {device_title}\n"
        f"simulated: step {format_time(plan.step_time_ns)}, {slower}; peak memory {format_bytes(plan.peak_bytes)}"
    )


def compact_policy(policy: Policy, layer_trees: Sequence[CellNode]) -> Policy:
    r"""Merge entries with the same layers and distance whose patterns differ in one part.

    `attention\.wq\.cast` and `attention\.wk\.cast` become `attention\.w[qk]\.cast`, if that matches nothing else.

    Args:
        policy: policy with one operator per pattern.
        layer_trees: tree of each kind of layer.
    """
    if policy.default_prefetch is not None:
        return policy  # the default strategy has entries of its own, and their order
    swaps: dict[tuple[Layers, int], list[str]] = {}
    for entry in policy.op_swap:
        swaps.setdefault((entry.layers, entry.prefetch), []).append(entry.pattern)
    recomputed: dict[Layers, list[str]] = {}
    for recompute in policy.select_recompute:
        recomputed.setdefault(recompute.layers, []).append(recompute.pattern)

    def names(pattern: str) -> frozenset[tuple[int, tuple[str, ...]]]:
        return frozenset(
            (i, match.path) for i, tree in enumerate(layer_trees) for match in match_pattern(pattern, tree)
        )

    op_swap = [OpSwap(p, layers, d) for (layers, d), patterns in swaps.items() for p in _merge(patterns, names)]
    select = [OpRecompute(p, layers) for layers, patterns in recomputed.items() for p in _merge(patterns, names)]
    return replace(
        policy,
        op_swap=tuple(sorted(op_swap, key=lambda entry: (entry.pattern, entry.prefetch))),
        select_recompute=tuple(sorted(select, key=lambda entry: entry.pattern)),
    )


def _merge(patterns: Iterable[str], names: Callable[[str], frozenset[object]]) -> list[str]:
    """Join patterns that differ in one part."""
    merged = sorted(patterns)
    for position in range(max((len(split_pattern(pattern)) for pattern in merged), default=0)):
        groups: dict[tuple[object, ...], list[str]] = {}
        for pattern in merged:
            parts = split_pattern(pattern)
            key = (*parts[:position], None, *parts[position + 1 :]) if position < len(parts) else (pattern,)
            groups.setdefault((position < len(parts), *key), []).append(pattern)
        merged = sorted(joined for group in groups.values() for joined in _join(group, position, names))
    return merged


def _join(patterns: list[str], position: int, names: Callable[[str], frozenset[object]]) -> list[str]:
    if not 1 < len(patterns) <= MAX_ALTERNATIVES:
        return patterns
    parts = [split_pattern(pattern)[position] for pattern in patterns]
    if any(re.search(r"[(\[|]", part) for part in parts):
        return patterns
    first = split_pattern(patterns[0])
    joined = SEPARATOR.join((*first[:position], _alternatives(parts), *first[position + 1 :]))
    matched = frozenset().union(*map(names, patterns))
    return [joined] if names(joined) == matched else patterns


def _alternatives(parts: Sequence[str]) -> str:
    """Return `w[qk]` if the parts differ in one character, else `(mul|silu)`."""
    if len({len(part) for part in parts}) == 1:
        differing = [i for i in range(len(parts[0])) if len({part[i] for part in parts}) > 1]
        letters = [part[differing[0]] for part in parts] if len(differing) == 1 else []
        if letters and all(letter.isalnum() for letter in letters):
            at = differing[0]
            return f"{parts[0][:at]}[{''.join(letters)}]{parts[0][at + 1 :]}"
    return f"({'|'.join(parts)})"
