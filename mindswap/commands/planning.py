"""What commands that plan share: a plan as the text of a configuration."""

from pathlib import Path

from mindswap.check.check import check_document
from mindswap.commands.stepping import LoadedStep
from mindswap.document.parse import parse_document
from mindswap.document.problem import Level
from mindswap.errors import PlanError
from mindswap.plan.result import Plan
from mindswap.plan.write import write_plan
from mindswap.report.problems import format_problems

__all__ = ["planned_text"]


def planned_text(config: Path, loaded: LoadedStep, plan: Plan, target: str) -> str:
    """A configuration with a plan, after it has been read back.

    Args:
        config: the user's file.
        loaded: what was loaded from it.
        plan: with a policy that `compact_policy` has seen.
        target: what messages call the result.

    Returns:
        The text; bytes that are no UTF-8 as surrogates.

    Raises:
        PlanError: what is read back is another policy, or has errors.
    """
    text = config.read_bytes().decode("utf-8", "surrogatepass")
    text = write_plan(text, loaded.document, plan, loaded.model.captured.num_layers, loaded.device.title)
    checked = check_document(parse_document(text.encode("utf-8", "surrogatepass"), target))
    errors = [problem for problem in checked.problems if problem.level is Level.ERROR]
    if errors or checked.policy != plan.policy:
        raise PlanError(f"the plan cannot be written to {target}\n{format_problems(errors)}")
    return text
