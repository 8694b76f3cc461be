"""The normalized policy: the treatment of each operator of each layer.

`model.py` has `Policy`, `resolve.py` decides which entry wins for an operator, `formats/` reads and writes the forms
in which users state a policy.
"""
