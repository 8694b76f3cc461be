"""Recompute in layer indices (swap on) and in counts per pipeline stage (swap off): the way between them.

Both directions are judged by reading the result back: in every layer the same operators must be recomputed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from mindswap.check.check import check_document, check_shape
from mindswap.config.nodes import Document
from mindswap.config.pipeline import Layout, LayoutError, read_pipeline
from mindswap.config.problem import Level, Location, Problem, sort_problems
from mindswap.config.render import document_from_data
from mindswap.errors import PolicyError
from mindswap.policy.applied import EXCLUDE, as_applied, cells_excluded
from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.convert import first_difference, policy_sections, resolve_policy
from mindswap.policy.expand import RULE as STAGE_RULE
from mindswap.policy.expand import expand_stage_recompute
from mindswap.policy.model import Layers, OpRecompute, Policy
from mindswap.policy.schema import RECOMPUTE_FLAGS, SELECT_OPTIONS
from mindswap.policy.settings import PolicySettings, Statement
from mindswap.policy.words import format_layers

RULE = "convert"
# Options that select operators.
SELECTED = ("select_recompute", "select_comm_recompute")
ONLY_OPERATORS = "MindFormers excludes operators only"
DIFFERENCE = "recompute_config: the other form would not mean the same: "


@dataclass(frozen=True)
class Converted:
    """A configuration in the other form."""

    sections: dict[str, dict[str, Any]]  # the sections that change, with their new values
    problems: tuple[Problem, ...]  # what is lost though it had no effect: warnings
    policy: Policy  # what the sections ask for, in layer indices


def to_index_form(document: Document, num_layers: int, trees: LayerTrees | None) -> Converted:
    """Counts per stage (swap off) as layer indices (swap on), with nothing swapped.

    Without `trees` what is excluded cannot be converted.

    Raises:
        PolicyError: it cannot be said so, or is wrong; with every reason.
    """
    swap = document.get("swap_config", "swap")
    if swap is not None and swap.value is not False:
        message = "swap_config.swap: swap is on, so recompute_config is in layer indices already"
        raise PolicyError((_error(swap.location, message),))
    expansion = expand_stage_recompute(document, num_layers)
    errors = [p for p in check_document(document, num_layers, trees).errors if p.rule == STAGE_RULE]
    if errors:
        raise PolicyError(sort_problems((*expansion.problems, *errors)))
    unknown = list(_unknown_excludes(expansion.statements, trees))
    if unknown:
        raise PolicyError(sort_problems(unknown))
    dropped = dict(_ineffective_flags(document))
    flags: dict[str, Any] = {name: RECOMPUTE_FLAGS[name] for name in dropped}
    policy = replace(as_applied(expansion.policy, trees), **flags)
    policy = _if_equal(policy, _without_whole(policy, num_layers), num_layers, trees)
    problems = list(dropped.values())
    for named in cells_excluded(expansion.statements, trees) if trees is not None else ():
        rest = "only the operators it names beside are written" if named.has_operators else "so it is left out"
        message = f"{named.statement.path}: had no effect on '{named.cell}', a cell: {ONLY_OPERATORS}; {rest}"
        problems.append(_warning(named.location, message, "write it again, to exclude all of the cell"))
    problems += [p for p in expansion.problems if p.location not in {q.location for q in problems}]
    section = document.get("swap_config")
    for entry in section.unique_entries() if section is not None else ():
        if entry.key in ("layer_swap", "op_swap") and (entry.value.items or entry.value.entries):
            message = f"swap_config.{entry.key}: had no effect with swap off, so it is left out"
            problems.append(_warning(entry.location, message, "write it again to swap"))
    problems += _attention_problem(document, policy, "the index form has only what is written")
    sections = policy_sections(policy, document.data(), num_layers)
    if not (policy.layer_recompute or any(getattr(policy, option) for option in SELECT_OPTIONS)):
        sections["swap_config"] = {"swap": False}  # nothing is recomputed: both forms say that, and this one quietly
        return Converted(sections, sort_problems(problems), policy)
    read_back = check_shape(document_from_data({**document.data(), **sections}, document.file), num_layers)
    if read_back.policy is None:
        raise PolicyError(read_back.problems)
    difference = first_difference(policy, read_back.policy, num_layers, trees)
    if difference:
        raise PolicyError((_error(_place(document, "recompute_config"), DIFFERENCE + difference),))
    return Converted(sections, sort_problems(problems), policy)


def to_stage_form(document: Document, num_layers: int, trees: LayerTrees | None) -> Converted:
    """Layer indices (swap on, no errors) as counts per pipeline stage (swap off), where that says the same.

    Without `trees` what is excluded cannot be converted.

    Raises:
        PolicyError: as of `to_index_form`.
    """
    result = check_shape(document, num_layers)
    policy, settings = result.policy, result.settings
    if policy is None or settings is None:
        raise PolicyError(result.problems)
    if not policy.is_swap_enabled:
        message = "swap_config.swap: swap is off, so recompute_config is in counts per stage already"
        raise PolicyError((_error(_place(document, "swap_config", "swap"), message),))
    try:
        layout = read_pipeline(document).layout(num_layers)
    except LayoutError as error:
        raise PolicyError((_error(Location(document.file), f"parallel_config.pipeline_stage: {error}"),)) from None
    policy = _if_equal(policy, _with_whole(policy, layout), num_layers, trees)
    problems = [*_lost_swaps(settings), *_obstacles(policy, settings, layout)]
    problems += _unknown_excludes(settings.recompute, trees)
    for named in cells_excluded(settings.recompute, trees) if trees is not None else ():
        message = f"{named.statement.path}: '{named.cell}' is a cell, and with swap off {ONLY_OPERATORS}"
        fix = f"name its operators: mindswap explain --paths {document.file}"
        problems.append(_error(named.location, message, fix))
    if problems:
        raise PolicyError(sort_problems(problems))
    recompute: dict[str, Any] = {"recompute": _counts(policy.layer_recompute, layout)}
    for option in SELECT_OPTIONS:
        counts = {entry.pattern: _counts(entry.layers, layout) for entry in getattr(policy, option)}
        if counts or document.entry("recompute_config", option) is not None:
            recompute[option] = counts or False
    for flag in RECOMPUTE_FLAGS:
        if document.entry("recompute_config", flag) is not None:
            recompute[flag] = getattr(policy, flag)
    sections = {"swap_config": {"swap": False}, "recompute_config": recompute}
    return _judged(document, policy, sections, num_layers, trees)


def _judged(
    document: Document, policy: Policy, sections: dict[str, dict[str, Any]], num_layers: int, trees: LayerTrees | None
) -> Converted:
    """Whether MindFormers makes the same of the counts."""
    converted = document_from_data({**document.data(), **sections}, document.file)
    read_back = expand_stage_recompute(converted, num_layers)
    reasons = [problem.message for problem in read_back.problems]
    meant = replace(resolve_policy(policy, num_layers), is_swap_enabled=False)
    if resolve_policy(read_back.policy, num_layers) != meant:
        reasons.append("recompute_config: the exclude options do not mean the same with swap off")
    if not reasons:
        difference = first_difference(policy, as_applied(read_back.policy, trees), num_layers, trees)
        reasons = [DIFFERENCE + difference] if difference else []
    if reasons:
        place = _place(document, "recompute_config")
        raise PolicyError(tuple(_error(place, reason) for reason in dict.fromkeys(reasons)))
    other = "the index form has only what it says"
    return Converted(sections, tuple(_attention_problem(document, policy, other)), policy)


def _if_equal(before: Policy, after: Policy, num_layers: int, trees: LayerTrees | None) -> Policy:
    """The second policy, if it recomputes the same."""
    return before if first_difference(before, after, num_layers, trees) else after


def _without_whole(policy: Policy, num_layers: int) -> Policy:
    """What is selected without the layers that are recomputed whole, where it has no effect."""
    changes: dict[str, Any] = {}
    whole = set(policy.layer_recompute.resolve(num_layers))
    for option in SELECTED:
        left = ((entry.pattern, set(entry.layers.resolve(num_layers)) - whole) for entry in getattr(policy, option))
        changes[option] = tuple(OpRecompute(pattern, Layers(layers)) for pattern, layers in left if layers)
    return replace(policy, **changes)


def _with_whole(policy: Policy, layout: Layout) -> Policy:
    """What is selected with the layers recomputed whole that a count has to take in, too: the inverse."""
    changes: dict[str, Any] = {}
    for option in SELECTED:
        filled = []
        for entry in getattr(policy, option):
            layers: set[int] = set()
            for cell in layout.cells():
                named = [position for position, index in enumerate(cell.layers) if index in entry.layers]
                reach = cell.layers[: max(named, default=-1) + 1]
                layers |= {index for index in reach if index in entry.layers or index in policy.layer_recompute}
            filled.append(OpRecompute(entry.pattern, Layers(layers)))
        changes[option] = tuple(filled)
    return replace(policy, **changes)


def _unknown_excludes(statements: tuple[Statement, ...], trees: LayerTrees | None) -> Iterator[Problem]:
    """What is excluded while the model is not known: whether a name is a cell decides what it means with swap off."""
    for statement in statements if trees is None else ():
        if statement.option == EXCLUDE and statement.layers:
            message = (
                f"{statement.path}: cannot be converted, because no table has this model: with swap off "
                f"{ONLY_OPERATORS}, and whether '{statement.pattern}' is one is not known"
            )
            fix = "run this where MindFormers is installed, or delete it first"
            yield _error(statement.pattern_location, message, fix)


def _lost_swaps(settings: PolicySettings) -> Iterator[Problem]:
    for statement in settings.swap:
        message = f"{statement.path}: would be lost, because with swap off nothing is swapped"
        yield _error(statement.location, message, "delete it first, if that is meant")
    for statement in settings.of("output_recompute"):
        if statement.layers:
            message = f"{statement.path}: has no counterpart in MindFormers"
            yield _error(statement.location, message, "delete it first, if that is meant")


def _obstacles(policy: Policy, settings: PolicySettings, layout: Layout) -> Iterator[Problem]:
    """Layers that counts cannot name: they are not the first ones of their stage."""
    wanted = [("recompute", None, policy.layer_recompute)]
    wanted += [(option, e.pattern, e.layers) for option in SELECT_OPTIONS for e in getattr(policy, option)]
    for option, pattern, layers in wanted:
        for cell in layout.cells():
            inside = [index for index in cell.layers if index in layers]
            counted = list(takewhile(layers.__contains__, cell.layers))
            stray = inside[len(counted) :]
            if not stray:
                continue
            statement = next(s for s in settings.of(option) if s.pattern == pattern and s.layers)
            chunk = f"chunk {cell.chunk} of " if len(layout.sizes) > 1 else ""
            message = (
                f"{statement.path}: {format_layers(Layers(stray))} cannot be counted: {chunk}stage {cell.stage} "
                f"has {format_layers(Layers(cell.layers))}, and a count takes the first ones"
            )
            first = format_layers(Layers(cell.layers[: len(inside)]))
            fix = f"{first} instead of {format_layers(Layers(inside))}, or keep the index form"
            yield _error(statement.location, message, fix)


def _counts(layers: Layers, layout: Layout) -> bool | list[Any]:
    """Layers that are the first ones of every cell, as MindFormers counts them."""
    cells = list(layout.cells())
    counts = [sum(index in layers for index in cell.layers) for cell in cells]
    if counts == [len(cell.layers) for cell in cells]:
        return True
    if not any(counts):
        return False
    width = len(layout.sizes[0])
    rows = [counts[start : start + width] for start in range(0, len(counts), width)]
    if layout.is_zero_bubble_v:
        rows[1].reverse()  # written by stage; the chunk runs through the stages backwards
    return rows if len(rows) > 1 else rows[0]


def _ineffective_flags(document: Document) -> Iterator[tuple[str, Problem]]:
    """Flags that MindFormers does not pass on with swap off; with swap on they would act."""
    for name, default in RECOMPUTE_FLAGS.items():
        node = document.get("recompute_config", name)
        acts = name == "recompute_slice_activation" and document.value("recompute_config", "recompute") is True
        if node is not None and node.value != default and not acts:
            message = f"recompute_config.{name}: had no effect with swap off, so {default} is written"
            yield name, _warning(node.location, message, f"{name}: {node.value}, to have it")


def _attention_problem(document: Document, policy: Policy, other: str) -> list[Problem]:
    """The legacy Llama recomputes more than what is selected, without saying so."""
    is_llama = document.value("model", "arch", "type") == "LlamaForCausalLM"
    has_flash = document.value("model", "model_config", "use_flash_attention") is True
    node = document.get("recompute_config", "select_recompute")
    if not is_llama or has_flash or node is None or not policy.select_recompute:
        return []
    message = (
        "recompute_config.select_recompute: with swap off and without flash attention MindFormers also recomputes the "
        f"scores of attention in every layer; {other}"
    )
    names = "apply_rotary_emb|tile_kv|batch_matmul_q_k|mul|add|cast_attn|softmax|batch_matmul"
    fix = rf"to have it: 'attention\.(?:{names})': True"
    return [_warning(node.location, message, fix)]


def _place(document: Document, *keys: str) -> Location:
    node = document.get(*keys)
    return node.location if node is not None else Location(document.file)


def _error(location: Location, message: str, fix: str = "") -> Problem:
    return Problem(location, RULE, Level.ERROR, message, fix=fix)


def _warning(location: Location, message: str, fix: str) -> Problem:
    return Problem(location, RULE, Level.WARNING, message, fix=fix)
