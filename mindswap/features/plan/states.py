"""Optimizer states of a step: on the device, or in host memory (`optimizer: {swap: True}`)."""

from dataclasses import dataclass, replace
from typing import Any

from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.config.render import document_from_data
from mindswap.config.section_edits import rewrite_section
from mindswap.config.source import BASE_CONFIG, with_model_of_folder
from mindswap.config.step_settings import is_on_cpu
from mindswap.errors import PolicyError
from mindswap.features.plan.pynative import is_model_2x
from mindswap.features.simulate import LoadedStep
from mindswap.rules.mindformers1.optimizers import takes_swap
from mindswap.simulator.cost.static_memory import state_sizes
from mindswap.simulator.cost.step_terms import move_states_ns
from mindswap.simulator.step_model import StepModel
from mindswap.units import format_bytes, format_time

# Pattern of the pin of optimizer states: `--pin optimizer=keep` or `--pin optimizer=swap`.
OPTIMIZER = "optimizer"
PLACES = {False: "on the card", True: "on the host"}


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


def find_obstacle(step: LoadedStep, is_on_host: bool = True) -> str:
    """Return why the optimizer states of a step cannot be in host memory, or cannot leave it; "" if they can."""
    optimizer = step.document.value("optimizer", "type")
    if is_model_2x(step.model):
        return "MindFormers 2.x has no states on the host in PyNative mode (its AdamW refuses enable_cpu_offload)"
    if step.path is None:
        return "there is no file to write optimizer.swap to"
    if optimizer is None:
        return "the file names no optimizer"
    if not takes_swap(optimizer):
        return f"MindFormers has no swap of optimizer states for {optimizer}"
    if is_on_cpu(step.document):
        return "on CPU they are in host memory"
    try:
        with_states_text(step, is_on_host)
    except PolicyError as error:
        return f"optimizer.swap cannot be written: {str(error).splitlines()[0]}"
    return ""


def with_states(step: LoadedStep, is_on_host: bool) -> LoadedStep:
    """Return the step with its optimizer states in host memory or on the device, with the text of its configuration."""
    settings = replace(step.model.settings, is_state_offloaded=is_on_host)
    text = with_states_text(step, is_on_host)
    document = parse_document(text, step.document.file)
    if document.get(BASE_CONFIG) is None:
        document = with_model_of_folder(document)
    else:
        data = {**step.document.data(), **_optimizer_section(step.document, is_on_host)}
        document = document_from_data(data, step.document.file)
    return replace(step, document=document, model=step.model.with_settings(settings), text=text)


def with_states_text(step: LoadedStep, is_on_host: bool) -> str:
    """Return the text of a configuration with `optimizer.swap`; all other text is unchanged.

    Raises:
        PolicyError: the text cannot be edited in place.
    """
    section = _optimizer_section(step.document, is_on_host)[OPTIMIZER]
    return rewrite_section(step.config_text(), OPTIMIZER, section, None, step.document.file)


def states_on_host(model: StepModel) -> tuple[int, int]:
    """Return bytes of the optimizer states of a card, and ns of their copies in a step, if they are on the host.

    Both are of the pipeline stage with the highest figure.
    """
    stages = [[weight for weight in stage if weight.is_trained] for stage in model.weights.parameters]
    sizes = [sum(sum(state_sizes(weight, model.settings)) for weight in stage) for stage in stages]
    return max(sizes), max(move_states_ns(stage, model.settings, model.costs.device) for stage in stages)


def _optimizer_section(document: Document, is_on_host: bool) -> dict[str, dict[str, Any]]:
    return {OPTIMIZER: {**(document.data().get(OPTIMIZER) or {}), "swap": is_on_host}}
