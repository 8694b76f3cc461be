"""A plan in the user's own YAML: the four interfaces and recompute in layer indices, few entries, a comment."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from mindswap.config.nodes import Document
from mindswap.config.section_edits import rewrite_section
from mindswap.planner.problem import Plan
from mindswap.policy.cell_tree import SEPARATOR, CellNode, match_pattern, split_pattern
from mindswap.policy.equivalence import policy_sections
from mindswap.policy.model import ENTRY_FIELDS, Layers, OpRecompute, OpSwap, Policy
from mindswap.units import format_bytes, format_time

# More names than this in one part of a pattern are hard to read.
MAX_ALTERNATIVES = 4


def write_plan(text: str, document: Document, plan: Plan, num_layers: int, device_title: str) -> str:
    """The configuration with the policy of a plan and its budget as `mindswap.memory`, everything else as it was.

    Whoever reads the file then, `simulate`, `check` or another `plan`, judges it by that budget.

    Args:
        text: the YAML.
        document: what it says.
        plan: with a policy that `compact_policy` has seen.
        num_layers: layers of the model.
        device_title: for which the plan was made.

    Raises:
        PolicyError: the text cannot be changed the way it is written.
    """
    data = document.data()
    sections = policy_sections(written_policy(plan.policy), data, num_layers)
    own = {**(sections.get("mindswap") or data.get("mindswap") or {}), "memory": _size_text(plan.budget_bytes)}
    for name, value in (sections | {"mindswap": own}).items():
        comment = plan_comment(plan, device_title) if name == "swap_config" else None
        text = rewrite_section(text, name, value, comment, document.file)
    return text


def written_policy(policy: Policy) -> Policy:
    """The policy as a configuration has it: one that keeps every activation needs no swap, and is `swap: False`."""
    changes_nothing = not any(getattr(policy, name) for name in ENTRY_FIELDS) and not policy.layer_recompute
    return Policy(is_swap_enabled=False) if changes_nothing else policy


def _size_text(size_bytes: int) -> str:
    """A size as `mindswap.memory` takes it; rounded up, so that a plan for it fits."""
    return f"{size_bytes // 2**30}GiB" if size_bytes % 2**30 == 0 else f"{-(-size_bytes // 2**20)}MiB"


def plan_comment(plan: Plan, device_title: str) -> str:
    """Comment above a section with a plan."""
    slower = f"{100 * plan.slowdown:.1f} % over keeping every activation"
    return (
        f"plan for {format_bytes(plan.budget_bytes)} per card on {device_title}\n"
        f"simulated: step {format_time(plan.step_time_ns)}, {slower}; peak memory {format_bytes(plan.peak_bytes)}"
    )


def compact_policy(policy: Policy, layers: Sequence[CellNode]) -> Policy:
    r"""The same policy in fewer entries: operators that share layers and distance and differ in one name are one.

    `attention\.wq\.cast` and `attention\.wk\.cast` become `attention\.w[qk]\.cast`, if that names nothing else.

    Args:
        policy: with one operator per pattern.
        layers: tree of each kind of layer.
    """
    if policy.default_prefetch is not None:
        return policy  # the default strategy has entries of its own, and their order
    swaps: dict[tuple[Layers, int], list[str]] = {}
    for entry in policy.op_swap:
        swaps.setdefault((entry.layers, entry.prefetch), []).append(entry.pattern)
    again: dict[Layers, list[str]] = {}
    for recompute in policy.select_recompute:
        again.setdefault(recompute.layers, []).append(recompute.pattern)

    def names(pattern: str) -> frozenset[tuple[int, tuple[str, ...]]]:
        return frozenset((i, match.path) for i, tree in enumerate(layers) for match in match_pattern(pattern, tree))

    op_swap = [OpSwap(p, where, d) for (where, d), patterns in swaps.items() for p in _merge(patterns, names)]
    select = [OpRecompute(p, where) for where, patterns in again.items() for p in _merge(patterns, names)]
    return replace(
        policy,
        op_swap=tuple(sorted(op_swap, key=lambda entry: (entry.pattern, entry.prefetch))),
        select_recompute=tuple(sorted(select, key=lambda entry: entry.pattern)),
    )


def _merge(patterns: Iterable[str], names: Callable[[str], frozenset[object]]) -> list[str]:
    """The patterns with those joined that differ in one part."""
    left = sorted(patterns)
    for position in range(max((len(split_pattern(pattern)) for pattern in left), default=0)):
        groups: dict[tuple[object, ...], list[str]] = {}
        for pattern in left:
            parts = split_pattern(pattern)
            rest = (*parts[:position], None, *parts[position + 1 :]) if position < len(parts) else (pattern,)
            groups.setdefault((position < len(parts), *rest), []).append(pattern)
        left = sorted(joined for group in groups.values() for joined in _join(group, position, names))
    return left


def _join(patterns: list[str], position: int, names: Callable[[str], frozenset[object]]) -> list[str]:
    if not 1 < len(patterns) <= MAX_ALTERNATIVES:
        return patterns
    parts = [split_pattern(pattern)[position] for pattern in patterns]
    if any(re.search(r"[(\[|]", part) for part in parts):
        return patterns
    first = split_pattern(patterns[0])
    joined = SEPARATOR.join((*first[:position], _alternatives(parts), *first[position + 1 :]))
    wanted = frozenset().union(*map(names, patterns))
    return [joined] if names(joined) == wanted else patterns


def _alternatives(parts: Sequence[str]) -> str:
    """`w[qk]` where they differ in one character, else `(mul|silu)`."""
    if len({len(part) for part in parts}) == 1:
        differing = [i for i in range(len(parts[0])) if len({part[i] for part in parts}) > 1]
        letters = [part[differing[0]] for part in parts] if len(differing) == 1 else []
        if letters and all(letter.isalnum() for letter in letters):
            at = differing[0]
            return f"{parts[0][:at]}[{''.join(letters)}]{parts[0][at + 1 :]}"
    return f"({'|'.join(parts)})"
