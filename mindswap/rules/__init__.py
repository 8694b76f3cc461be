"""Problems of a configuration and of a machine.

In: a `Document`. Out: problems with place, message and fix.
`rules/` are for files of MindFormers 1.9, `rules_2x/` for 2.x, `doctor/` looks at the machine.
Open first: `rules/checker.py`, then any file of `rules/`.
"""
