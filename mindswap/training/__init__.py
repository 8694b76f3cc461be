"""A training: launched, followed, measured, adapted.

In: a command line and a configuration. Out: running workers, what their logs say, a run beside its simulation.
`launch/` starts workers, `logs/` reads them, `proof/` measures, `dryrun/` runs the Ascend backend without a card,
`adaptive/` plans again when memory is short, `data/` makes samples.
Open first: `launch/training.py`, `logs/read.py`, `adaptive/decide.py`.
"""
