"""One package a command: the public function in `__init__.py`, its report, its command line.

`mindswap` exports the public functions. A feature imports another one through its `__init__.py` only. `step.py` has
`load_step`, with which `simulate`, `plan` and `dryrun` begin.
"""
