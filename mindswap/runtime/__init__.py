"""A training: launched, followed, measured, adapted.

In: a command line and a configuration. Out: running workers, what their logs say, a run beside its simulation.
`launch/` starts workers, `logs/` reads them, `measure/` runs a few steps, on cards or on the backend without one,
`adaptive/` plans again when memory is short, `data/` makes samples.
Open first: `launch/training.py`, `logs/read.py`, `adaptive/decide.py`.
"""
