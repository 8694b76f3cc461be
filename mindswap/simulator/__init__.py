"""A training step before it runs: time and memory.

In: a captured step, a policy, a device. Out: a timeline of computing, copies and memory for each pipeline stage.
`cost/` says how long an operator or a copy takes on a device, `schedules/` in which order a stage passes micro-batches.
Open first: `step_model.py`, then `build.py` (program) and `engine.py` (events).
"""
