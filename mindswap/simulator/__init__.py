"""Time and memory of a training step on a device, from the compiled layers and a policy.

`step_model.py` makes a program (`program_builder.py`) of a policy and runs it (`engine.py`). `cost/` has the time of
operators and copies, `schedules/` the order of micro-batches, `profile/` figures of real machines.
"""
