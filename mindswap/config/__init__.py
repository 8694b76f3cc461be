"""YAML documents: nodes that know line and column, typed readings of them, and edits that keep comments.

Start reading at `parse.py` (text to `Document`) and `step_settings.py` (a typed reading).
"""
