"""A step that ran in PyNative mode.

In: a recorded trace. Out: which storage moves at which event (schedule), live bytes over time (ledger), a `Graph`
(from_trace).
`adapters/pynative/` records, executes and trains.
Open first: `trace.py`, then `schedule.py`.
"""
