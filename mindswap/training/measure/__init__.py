"""A measurement: a configuration made short (`config`), run, and what came out beside its simulation.

It is run in one of two ways: on cards or a CPU, by workers that train (`on_workers`: memory, step times, losses, log
lines), or on MindSpore's Ascend backend without a card (`on_backend`, with `stand_ins` for CANN: what is live, operator
by operator, `pool`). Out: of the first a proof with its checks (`proving`, `checks`, `proof`), of the second `stages`.
"""
