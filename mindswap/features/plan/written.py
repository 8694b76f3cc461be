"""Text of a configuration with a plan written into it, and what must hold of the configuration for that."""

from dataclasses import replace
from typing import Any

from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.config.source import with_model_of_folder
from mindswap.errors import PlanError, PolicyError
from mindswap.features.plan.pynative import is_model_2x, planned_text_2x
from mindswap.features.simulate import LoadedStep
from mindswap.features.step_2x import is_2x
from mindswap.planner.problem import Plan
from mindswap.planner.recompute_counts import counted_sections
from mindswap.planner.write import compact_policy, memory_setting, write_plan, written_policy
from mindswap.policy.equivalence import rewrite_for_swap, with_swap_enabled
from mindswap.policy.model import Policy
from mindswap.report.problems import format_problems
from mindswap.rules.checker import check_document
from mindswap.simulator.cost.budget import budget_of_device
from mindswap.simulator.cost.device_costs import find_costs


def check_plan_writable(document: Document) -> None:
    """Reject a configuration that has errors with any plan written into it, before the search starts.

    Raises:
        PolicyError: with every error and its location in the user's file.
    """
    if is_2x(document):
        return  # `load_step` has checked it
    errors = check_document(document).errors or check_document(with_swap_enabled(document)).errors
    if errors:
        raise PolicyError(errors)


def compact(step: LoadedStep, plan: Plan) -> Plan:
    """Return the plan with its policy merged into as few entries as possible."""
    return replace(plan, policy=compact_policy(plan.policy, step.model.captured.trees))


def planned_text(step: LoadedStep, plan: Plan, target: str) -> str:
    """Return the text of the configuration with a plan, after reading it back.

    Args:
        step: the planned step; without a file, the text has the sections of the policy only.
        plan: a plan from `compact`.
        target: name of the output file for messages.

    Returns:
        The text; bytes that are not UTF-8 are surrogates.

    Raises:
        PlanError: if the written text has errors, or is parsed as another policy.
    """
    if is_model_2x(step.model):
        return planned_text_2x(step, plan, target)
    text, policy = step.config_text(), written_policy(plan.policy)
    counted = counted_sections(plan.policy, step.document, step.model.captured.num_layers)
    if counted is not None:
        policy = Policy(is_swap_enabled=False)  # `counted_sections` has read the counts
    if policy.is_swap_enabled:
        file_document = parse_document(text, step.document.file)
        text = rewrite_for_swap(text, file_document, step.document)
    num_layers, title = step.model.captured.num_layers, step.device.title
    text = write_plan(text, step.document, plan, num_layers, title, budget_settings(step, plan))
    checked = check_document(
        with_model_of_folder(parse_document(text, target)), num_layers if step.path is None else None
    )
    if checked.policy != policy:  # None with errors
        raise PlanError(f"the plan cannot be written to {target}\n{format_problems(checked.errors)}")
    return text


def budget_settings(step: LoadedStep, plan: Plan) -> dict[str, Any]:
    """Return the settings of `mindswap:` with which the configuration has the budget of a plan, and its margin."""
    if budget_of_device(find_costs([step.document], None, {}).device).planned_bytes == plan.budget_bytes:
        return {}
    budget = budget_of_device(step.device)
    if budget.planned_bytes == plan.budget_bytes and budget.margin_permille:
        return memory_setting(budget.usable_bytes) | {"margin": budget.margin_permille / 1000}
    has_margin_of_file = step.document.value("mindswap", "margin") is not None
    return memory_setting(plan.budget_bytes) | ({"margin": 0} if has_margin_of_file else {})
