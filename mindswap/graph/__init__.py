"""The compiled graph: what it keeps in memory, who uses it, and what of the policy took effect.

In: the protobuf of MindSpore's compiler. Out: `Graph`, bytes kept for backward, FLOPs and bytes of operators.
`sharding/` gives sizes per rank, `rewrite/` the step under another policy without compiling, `effect/` compares graph
and policy.
Open first: `model.py`, then `load.py` and `storage.py`; `ops.py` has all that is known of an operator.
"""
