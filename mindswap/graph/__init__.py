"""The compiled graph of a training step, and what can be derived from it.

`load.py` reads the MindIR of MindSpore's compiler into `Graph` (`model.py`). `passes/` rewrite a graph, `analysis/`
measures it, `sharding/` gives sizes on one rank. `ops.py` has all that is known of an operator.
"""
