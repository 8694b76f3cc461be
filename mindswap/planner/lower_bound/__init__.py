"""Step time that no policy can beat within a budget, from a linear programme over the captured layers."""

from mindswap.planner.lower_bound.inputs import Facts, facts_of
from mindswap.planner.lower_bound.relaxation import least_budget_bytes, least_step_ns

__all__ = ["Facts", "facts_of", "least_budget_bytes", "least_step_ns"]
