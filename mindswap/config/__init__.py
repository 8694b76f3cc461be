"""YAML text with places, and typed readings of it.

In: the text of a configuration. Out: a `Document` whose nodes know line and column; what it says of pipeline, rank,
memory and weights as plain values; and edits back into the user's text that keep comments.
Open first: `parse.py` (text -> Document), then `step.py` (a typed reading).
"""
