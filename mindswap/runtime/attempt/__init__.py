"""Training that plans, watches itself and starts again: plan -> start -> watch -> decide -> plan ...

model (plain data) -> decide (pure: state and event -> state and action) -> watch (logs of the workers while
they grow), checkpoints, exclusions, command -> state (one JSON per run directory) -> supervise (processes).
"""
