"""Optimizer states of a step: on the device, or in host memory (`optimizer: {swap: True}`)."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.config.render import document_from_data
from mindswap.config.section_edits import rewrite_section
from mindswap.config.source import BASE_CONFIG, with_model_of_folder
from mindswap.config.step_settings import is_on_cpu
from mindswap.errors import PlanError, PolicyError
from mindswap.features.plan.pynative import is_model_2x
from mindswap.features.simulate import LoadedStep
from mindswap.planner.pins import Pin, PinTreatment
from mindswap.rules.mindformers1.optimizers import takes_swap
from mindswap.simulator.cost.static_memory import state_sizes
from mindswap.simulator.cost.step_terms import move_states_ns
from mindswap.simulator.step_model import StepModel
from mindswap.units import format_bytes, format_time

# Pattern of the pin of optimizer states: `--pin optimizer=keep` or `--pin optimizer=swap`.
OPTIMIZER = "optimizer"
PLACES = {False: "on the card", True: "on the host"}


def is_states_pin(text: str) -> bool:
    """Return whether a value of `--pin` is about the optimizer states."""
    return text.partition("=")[0].strip() == OPTIMIZER


@dataclass(frozen=True)
class OptimizerStates:
    """Placement of the optimizer states in a plan, with the cost of the host. Figures are simulated."""

    is_on_host: bool
    is_changed: bool  # the configuration has them in the other place
    size_bytes: int  # of one card, on the stage that has most
    copy_ns: int  # exposed time of the copies of a step if they are on the host, on the slowest stage
    reason: str  # why they are where they are

    def __str__(self) -> str:
        cost = f"{format_bytes(self.size_bytes)} per card, copied in {format_time(self.copy_ns)} after backward"
        return f"states {PLACES[self.is_on_host]}" + (f", {cost}" if self.is_on_host else "") + f": {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """Return the placement as plain data for `--json`."""
        return {
            "is_on_host": self.is_on_host, "size_bytes": self.size_bytes, "copy_ns": self.copy_ns,
            "reason": self.reason,
        }  # fmt: skip


def read_states_pin(pins: Iterable[Pin]) -> bool | None:
    """Return whether the user pins the optimizer states to the host; None without a pin.

    Raises:
        PlanError: the pins contradict each other, or are not about the placement.
    """
    treatments = {pin.treatment for pin in pins if pin.pattern == OPTIMIZER}
    if not treatments:
        return None
    if len(treatments) > 1 or PinTreatment.RECOMPUTE in treatments:
        given = ", ".join(sorted(treatment.value for treatment in treatments))
        raise PlanError(
            f"--pin {OPTIMIZER}={given}: of its states\n    allowed: keep, swap\n    fix:     one of the two"
        )
    return treatments == {PinTreatment.SWAP}


def require_place(is_on_host: bool, is_file_on_host: bool, obstacle: str) -> None:
    """Require that the optimizer states can be where a pin has them.

    Args:
        is_on_host: the placement of the pin.
        is_file_on_host: the placement of the configuration, which is always possible.
        obstacle: why the other placement is impossible; "" if it is possible.

    Raises:
        PlanError: the placement is impossible.
    """
    if is_on_host != is_file_on_host and obstacle:
        asked, allowed = (PinTreatment.SWAP, PinTreatment.KEEP)[:: 1 if is_on_host else -1]
        raise PlanError(
            f"--pin {OPTIMIZER}={asked.value}: {obstacle}\n    allowed: {OPTIMIZER}={allowed.value}\n"
            "    fix:     leave it out"
        )


def find_obstacle(step: LoadedStep, is_on_host: bool = True) -> str:
    """Return why the optimizer states of a step cannot be in host memory, or cannot leave it; "" if they can."""
    if is_model_2x(step.model):
        return "MindFormers 2.x has no states on the host in PyNative mode (its AdamW refuses enable_cpu_offload)"
    if step.path is None:
        return "there is no file to write optimizer.swap to"
    return find_file_obstacle(step.document, step.config_text(), is_on_host)


def find_file_obstacle(document: Document, text: str, is_on_host: bool = True) -> str:
    """Return why a configuration cannot have its optimizer states in host memory, or not on the device; "" if it can.

    Args:
        document: configuration of MindFormers 1.9.
        text: its text.
        is_on_host: the placement in question.
    """
    optimizer = document.value("optimizer", "type")
    if optimizer is None:
        return "the file names no optimizer"
    if not takes_swap(optimizer):
        return f"MindFormers has no swap of optimizer states for {optimizer}"
    if is_on_cpu(document):
        return "on CPU they are in host memory"
    try:
        with_states_text(document, text, is_on_host)
    except PolicyError as error:
        return f"optimizer.swap cannot be written: {str(error).splitlines()[0]}"
    return ""


def with_states(step: LoadedStep, is_on_host: bool) -> LoadedStep:
    """Return the step with its optimizer states in host memory or on the device, with the text of its configuration."""
    settings = replace(step.model.settings, is_state_offloaded=is_on_host)
    text = with_states_text(step.document, step.config_text(), is_on_host)
    document = parse_document(text, step.document.file)
    if document.get(BASE_CONFIG) is None:
        document = with_model_of_folder(document)
    else:
        data = {**step.document.data(), **_optimizer_section(step.document, is_on_host)}
        document = document_from_data(data, step.document.file)
    return replace(step, document=document, model=step.model.with_settings(settings), text=text)


def with_states_text(document: Document, text: str, is_on_host: bool) -> str:
    """Return the text of a configuration with `optimizer.swap`; all other text is unchanged.

    Raises:
        PolicyError: the text cannot be edited in place.
    """
    section = _optimizer_section(document, is_on_host)[OPTIMIZER]
    return rewrite_section(text, OPTIMIZER, section, None, document.file)


def states_on_host(model: StepModel) -> tuple[int, int]:
    """Return bytes of the optimizer states of a card, and ns of their copies in a step, if they are on the host.

    Both are of the pipeline stage with the highest figure.
    """
    stages = [[weight for weight in stage if weight.is_trained] for stage in model.weights.parameters]
    sizes = [sum(sum(state_sizes(weight, model.settings)) for weight in stage) for stage in stages]
    return max(sizes), max(move_states_ns(stage, model.settings, model.costs.device) for stage in stages)


def _optimizer_section(document: Document, is_on_host: bool) -> dict[str, dict[str, Any]]:
    return {OPTIMIZER: {**(document.data().get(OPTIMIZER) or {}), "swap": is_on_host}}
