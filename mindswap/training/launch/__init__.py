"""Starts the workers of a training run with the plugin on: what `scripts/msrun_launch.sh` runs.

arguments (words -> Job) -> order (EXECUTE_ORDER -> command of a worker) -> msrun (command line,
environment) -> run (start, wait, stop) -> logs (old logs aside, what failed).
"""
