"""The memory budget of a plan, and the problem that the planner solves within it."""

from mindswap.config.device_memory import pinnable_bytes, read_device_memory
from mindswap.errors import PlanError, require
from mindswap.features.simulate import LoadedStep
from mindswap.planner.problem import DEFAULT_ALLOW, Allow, Objective, Plan, PlanProblem
from mindswap.planner.session import LOSS_PERMILLE
from mindswap.simulator.cost.budget import MemoryBudget, budget_of_device, has_margin
from mindswap.simulator.cost.hardware import SET_BY_USER, without_fragments
from mindswap.simulator.layer_swap_2x import LayerSwapModel2x
from mindswap.simulator.step_model_2x import StepModel2x
from mindswap.units import format_bytes, parse_bytes


def make_problem(
    step: LoadedStep,
    memory: str | int | None = None,
    allow: Allow = DEFAULT_ALLOW,
    objective: Objective = Objective.TIME,
) -> PlanProblem:
    """Build the input of the planner. Arguments as for `make_plan`."""
    device = step.device
    budget_bytes = find_budget(step, memory)[0]
    if not isinstance(step.model, (LayerSwapModel2x, StepModel2x)):  # peaks of those have no fragments
        budget_bytes = without_fragments(device, budget_bytes)
    return PlanProblem(
        model=step.model,
        budget_bytes=budget_bytes,
        host_bytes=pinnable_bytes(device.host_memory_bytes),
        num_cards_per_node=device.num_cards_per_node,
        allow=allow,
        objective=objective,
        settings=step.policy,
    )


def find_budget(step: LoadedStep, memory: str | int | None = None) -> tuple[int, str]:
    """Return the memory budget of a card in bytes, and its origin in words ("" if the user gave it).

    A budget given by the user is used in full. A limit of the device or of the configuration is reduced by a safety
    margin, because the simulation does not model all memory.

    Raises:
        PlanError: the memory cannot be parsed, or is more than the device has.
    """
    device = step.device
    try:
        named_bytes = parse_bytes(memory) if isinstance(memory, str) else memory
    except ValueError as error:
        raise PlanError(f"memory: {error}") from None
    if named_bytes is not None:
        require("memory", named_bytes, int)
        if named_bytes < 1:
            raise PlanError(f"memory: {named_bytes} bytes\n    allowed: 1 or more")
        if named_bytes > device.memory_bytes:
            device_memory = format_bytes(device.memory_bytes)
            raise PlanError(
                f"memory: {format_bytes(named_bytes)} is more than the {device_memory} of the device\n"
                f"    allowed: up to {device_memory}\n    fix:     a smaller budget, or another device"
            )
        return named_bytes, ""
    budget = budget_of_device(device)
    if not has_margin(device):
        return budget.planned_bytes, ""
    stated = read_device_memory(step.document)
    source = "--memory" if device.sources["usable_memory"] == SET_BY_USER else f"device {device.name}"
    if stated is not None and device.sources["usable_memory"] == stated.source:
        source = stated.source
    margin = f"less a margin of {budget.margin_permille / 10:g} %; --margin 0 for none"
    text = f"{format_bytes(budget.usable_bytes)} ({source}), {margin if budget.margin_permille else 'no margin'}"
    return budget.planned_bytes, text


def usable_budget(step: LoadedStep, memory: str | int | None = None) -> MemoryBudget:
    """Return the budget that peaks with fragments are compared with. Arguments as for `find_budget`."""
    return budget_of_device(step.device) if memory is None else MemoryBudget(find_budget(step, memory)[0])


def objective_warning(plan: Plan, objective: Objective) -> str:
    """Return a warning if a plan for least memory is slower than its limit allows; "" otherwise."""
    if objective is not Objective.MEMORY or not plan.fits or plan.slowdown <= LOSS_PERMILLE / 1000:
        return ""
    return (
        f"--objective memory costs at most {LOSS_PERMILLE / 10:g} % over keeping every activation, where that is "
        f"possible; no plan found for {format_bytes(plan.budget_bytes)} does, so this is the fastest"
    )


def budget_warning(step: LoadedStep, budget_bytes: int) -> str:
    """Return a warning if the configuration limits device memory to less than the budget; "" otherwise."""
    limit = read_device_memory(step.document)
    if limit is None or limit.size_bytes >= budget_bytes:
        return ""
    return f"{limit.source}, is {format_bytes(limit.size_bytes)}, less than the budget: raise it, or plan for less"
