"""Which activations to swap, recompute or keep, for a given memory.

In: a `StepModel` and a budget. Out: a policy, replayed by the simulator, and a lower bound of any policy's time.
`solvers/` search, `bound/` proves.
Open first: `planner/planning.py`, then `space.py` and `evaluate.py`.
"""
