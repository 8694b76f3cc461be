"""Findings: problems of a configuration or of a machine, with location, allowed values and a fix.

`checker.py` reads a configuration and runs the rules. `mindformers1/` has those for files of MindFormers 1.9,
`mindformers2/` those for 2.x, `machine/` those of `mindswap doctor`.
"""
