"""Time and memory of a training step on a device, from the compiled layers and a policy.

`step_model.py` builds the program of a policy (`program_builder.py`) and simulates it (`engine.py`). `cost/` computes
durations of operators and copies, `schedules/` the order of passes, `profile/` device parameters from real profiles.
"""
