"""PyNative mode: a recorded step as data, and everything derived from it.

`trace.py` defines the recorded step, `schedule.py` the actions of swap at its events, `ledger.py` the live bytes over
time. `from_trace.py` converts a trace to a `Graph`. `adapters/pynative/` records steps and executes schedules.
"""
