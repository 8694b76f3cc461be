"""A measurement: a configuration made short (`config`), run, and what came out, to be put beside its simulation.

It is run in one of two ways. On cards or a CPU workers train (`on_workers`): memory, step times, losses, log lines;
several such runs and their checks are a `proof` (`api.prove`). On MindSpore's Ascend backend, without a card, a rank of
each stage is run (`on_backend`, with `stand_ins` for CANN): what is live, operator by operator (`pool`), and what that
says of the stage (`stages`, `api.dry_run`).
"""
