"""Step time that no policy can beat within a budget, from a linear programme over the captured layers."""

from mindswap.planner.lower_bound.inputs import BoundInputs, collect_bound_inputs
from mindswap.planner.lower_bound.pinned_layers import with_pins
from mindswap.planner.lower_bound.relaxation import least_budget_bytes, min_step_ns

__all__ = ["BoundInputs", "collect_bound_inputs", "least_budget_bytes", "min_step_ns", "with_pins"]
