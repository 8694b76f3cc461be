"""Plans for configurations of MindFormers 2.x: the policy is written as 2.x sections."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.config.render import document_from_data
from mindswap.config.section_edits import rewrite_section
from mindswap.errors import PlanError
from mindswap.features.dryrun import read_shards
from mindswap.features.simulate import LoadedStep
from mindswap.features.step_2x import is_2x, model_of_trees, policy_of_effect
from mindswap.planner.problem import Allow, Plan
from mindswap.planner.write import plan_comment
from mindswap.policy.formats.mindformers2.settings import OWN_ENGINE, SWAP_ENGINE
from mindswap.policy.model import LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.policy.wording import index_runs
from mindswap.report.problems import format_problems
from mindswap.rules.checker import check_pynative
from mindswap.simulator.layer_swap_2x import LayerSwapModel2x
from mindswap.simulator.step_model import StepModel
from mindswap.simulator.step_model_2x import StepModel2x, distance_of

# Keys that `plan` adds where nothing else fits: mindswap's own executor, and pieces of the loss.
ENGINE, CHUNKS = ("mindswap", SWAP_ENGINE), ("model", "chunk_loss_num")
# Chunks of layers in each pipeline stage.
CHUNKS_PER_STAGE = ("parallelism", "pipeline_parallel_interleave_num")
# Notes of `plan` where it plans without swap for them.
NO_SWAP_NOTE = "no swap: neither MindFormers nor mindswap swaps pipeline stages of several chunks"
UPSTREAM_STAGES_NOTE = (
    f"no swap: MindFormers does not swap pipeline stages; mindswap does, with {'.'.join(ENGINE)}: {OWN_ENGINE}"
)


def is_model_2x(model: StepModel) -> bool:
    """Return whether policies of a model have the meaning of MindFormers 2.x."""
    return isinstance(model, (LayerSwapModel2x, StepModel2x))


def require_known_swap(step: LoadedStep, allow: Allow) -> None:
    """Refuse plans with mindswap's own swap from a trace of MindFormers 1.9, which shows what MindFormers' swap does.

    Args:
        step: the step to plan.
        allow: means that the plan may use.

    Raises:
        PlanError: with the location of the key.
    """
    node = step.document.get(*ENGINE)
    if isinstance(step.model, LayerSwapModel2x) and node is not None and node.value == OWN_ENGINE and allow.swap:
        raise PlanError(
            f"{node.location}: mindswap.{SWAP_ENGINE}: {OWN_ENGINE}: with a trace of MindFormers 1.9 plans are made "
            "for the swap of MindFormers, and the file has that of mindswap, which moves other tensors\n"
            "    allowed: upstream, or a step that MindFormers 2.x recorded\n"
            f"    fix:     leave --trace out, or --allow recompute, or {SWAP_ENGINE}: upstream"
        )


def _own_engine_section(document: Document) -> dict[str, Any]:
    """Return the section `mindswap` of a configuration, with mindswap's own executor."""
    return {**(document.data().get(ENGINE[0]) or {}), SWAP_ENGINE: OWN_ENGINE}


def with_own_engine(document: Document, text: str) -> Document:
    """Return a configuration that mindswap's own executor swaps; `text` is that of the document."""
    text = rewrite_section(text, ENGINE[0], _own_engine_section(document), None, document.file)
    return parse_document(text, document.file)


def allow_for_stages(document: Document, allow: Allow) -> Allow:
    """Return the means that a plan of a file may use: not every swap works with pipeline stages.

    Args:
        document: a configuration; those of MindFormers 1.9 may use all.
        allow: means that the plan may use.

    Raises:
        PlanError: nothing is left.
    """
    note = no_swap_note(document)
    if not allow.swap or not note:
        return allow
    if not allow.recompute:
        key, allowed = (
            (CHUNKS_PER_STAGE, "1 with swap")
            if note == NO_SWAP_NOTE
            else (("parallelism", "pipeline_parallel"), f"1 with swap, or {'.'.join(ENGINE)}: {OWN_ENGINE}")
        )
        raise PlanError(
            f"{document.location_of(*key)}: {'.'.join(key)}: {note}\n"
            f"    allowed: {allowed}\n    fix:     --allow recompute"
        )
    return replace(allow, swap=False)


def no_swap_note(document: Document) -> str:
    """Return why plans of a file cannot swap; "" if they can."""
    if not is_2x(document) or document.count("parallelism", "pipeline_parallel") <= 1:
        return ""
    if _has_chunks(document):
        return NO_SWAP_NOTE
    return "" if document.value(*ENGINE) == OWN_ENGINE else UPSTREAM_STAGES_NOTE


def cards_note(document: Document, num_cards: int | None) -> str:
    """Return what the plan of a file does not have of a training with so many cards; "" for nothing.

    Args:
        document: a configuration; MindFormers 1.9 has all of it.
        num_cards: cards of the training; None for those of the configuration.
    """
    shards = read_shards(document, num_cards) if is_2x(document) else None
    if shards is None:
        return ""
    return (
        f"planned for one rank with everything: with {shards} a rank of {num_cards} cards holds less of weights, "
        f"states and gradients. What it needs at most is computed from the plan's dry run (dryrun --cards {num_cards})"
    )


def _has_chunks(document: Document) -> bool:
    return document.count("parallelism", "pipeline_parallel") > 1 and document.count(*CHUNKS_PER_STAGE) > 1


def with_swappable_stages(document: Document, allow: Allow) -> Document:
    """Return a configuration whose plan may swap: with pipeline stages MindFormers refuses, and mindswap swaps.

    Args:
        document: a configuration of MindFormers 2.x.
        allow: means that the plan may use.
    """
    has_stages = document.count("parallelism", "pipeline_parallel") > 1
    if not allow.swap or not has_stages or _has_chunks(document) or document.value(*ENGINE) == OWN_ENGINE:
        return document
    changed = {**document.data(), ENGINE[0]: _own_engine_section(document)}
    return document_from_data(changed, document.file, document)


def added_engine(step: LoadedStep, policy: Policy) -> bool:
    """Return whether a plan swaps with mindswap's own executor, and the file of its step does not."""
    is_own = is_2x(step.document) and step.document.value(*ENGINE) == OWN_ENGINE
    if not is_own or not (policy.layer_swap or policy.op_swap):
        return False
    return parse_document(step.config_text(), step.document.file).value(*ENGINE) != OWN_ENGINE


def sections_2x(policy: Policy, num_layers: int) -> dict[str, dict[str, Any]]:
    """Return a policy as sections of MindFormers 2.x, where `prefetch` counts layers and patterns are exact paths.

    Distances that differ from the largest one are written to their entries, as mindswap's own executor takes them.
    """
    default = distance_of(policy)

    def entry_of(entry: LayerSwap | OpSwap) -> dict[str, Any]:
        distance = {} if entry.prefetch == default else {"prefetch": entry.prefetch}
        return {"layers": index_runs(entry.layers.resolve(num_layers)), **distance}

    swap: dict[str, Any] = {"enable": False}
    if policy.layer_swap or policy.op_swap:
        swap = {"enable": True, "default_prefetch": default}
    if policy.layer_swap:
        swap["layer_swap"] = [entry_of(entry) for entry in policy.layer_swap]
    if policy.op_swap:
        swap["op_swap"] = [{"op_name": escaped(entry.pattern), **entry_of(entry)} for entry in policy.op_swap]
    recomputed = policy.layer_recompute.resolve(num_layers)
    recompute: dict[str, Any] = {"mode": "None"}
    if recomputed:
        recompute = {"mode": "full", "full_recompute_layer": index_runs(recomputed)}
    if policy.select_recompute:
        modules = {escaped(e.pattern): index_runs(e.layers.resolve(num_layers)) for e in policy.select_recompute}
        recompute = {**recompute, "mode": "select", "select_module": modules}
    return {"swap": swap, "recompute": recompute}


def chunked_text(document: Document, text: str, count: int) -> str:
    """Return the text of a configuration that computes its loss in `count` pieces; `text` is that of the document."""
    return rewrite_section(text, CHUNKS[0], {**document.data()[CHUNKS[0]], CHUNKS[1]: count}, None, document.file)


def with_chunks(document: Document, text: str, count: int) -> Document:
    """Return a configuration that computes its loss in `count` pieces; `text` is that of the document."""
    return parse_document(chunked_text(document, text, count), document.file)


def added_chunks(step: LoadedStep) -> int | None:
    """Return the pieces of the loss of a step if its file has another number; None otherwise."""
    if not is_2x(step.document):
        return None
    count = step.document.value(*CHUNKS)
    return None if count == parse_document(step.config_text(), step.document.file).value(*CHUNKS) else count


def escaped(path: str) -> str:
    r"""Return the pattern of an exact path: its dots are written `\.`."""
    return path.replace(".", r"\.")


def planned_text_2x(step: LoadedStep, plan: Plan, target: str) -> str:
    """Return the text of a 2.x configuration with a plan, after reading it back. Comments and other keys stay.

    Raises:
        PlanError: if the written text has errors, or is parsed as another policy, or the step is a trace.
    """
    if not is_2x(step.document):
        raise PlanError(
            f"{step.document.file}: a plan of a recorded step is written into its configuration of MindFormers 2.x\n"
            f"    fix:     mindswap plan CONFIG --trace {step.document.file}"
        )
    trees = step.model.captured.trees
    text = step.config_text()
    if (count := added_chunks(step)) is not None:
        text = chunked_text(step.document, text, count)
    if added_engine(step, plan.policy):
        text = rewrite_section(text, ENGINE[0], step.document.data()[ENGINE[0]], None, target)
    for name, value in sections_2x(plan.policy, len(trees)).items():
        comment = plan_comment(plan, step.device.title) if name == "swap" else None
        text = rewrite_section(text, name, value, comment, step.document.file)
    checked = check_pynative(parse_document(text, target), None, model_of_trees(trees))
    if checked.errors or _rows(policy_of_effect(checked.effect)) != _rows(plan.policy):
        raise PlanError(f"the plan cannot be written to {target}\n{format_problems(checked.errors)}")
    return text


def _rows(policy: Policy) -> tuple[object, ...]:
    """Return what a policy does, in one order."""

    def by_path(entries: Iterable[OpSwap | OpRecompute]) -> list[tuple[str, object]]:
        return sorted((entry.pattern, entry.layers.indices) for entry in entries)

    layers = sorted((entry.layers.indices or (), entry.prefetch) for entry in policy.layer_swap)
    distances = sorted((entry.pattern, entry.prefetch) for entry in policy.op_swap)
    cells = by_path(policy.op_swap), by_path(policy.select_recompute)
    return layers, policy.layer_recompute.indices, cells, distances, distance_of(policy)
