"""The policy that trains fastest within a memory budget, and a lower bound of the step time of any policy.

`planning.py` goes from a `StepModel` and a budget to a plan; `solver/` searches, `lower_bound/` bounds, `evaluate.py`
replays a policy on the whole step.
"""
