"""The door: what commands and Python users call.

In: a path or a network. Out: results of a whole question, kept in a cache where they took a compile.
One function for each command: `load_step`, `plan`, `verify`, `inspect`, `run`.
Open first: `step.py`.
"""
