"""Training step graph: the compiled step as data, and everything derived from it.

`load.py` reads the MindIR of MindSpore's compiler into a `Graph` (`model.py`). `passes/` rewrites a graph, `analysis/`
measures it, `sharding/` computes the tensor sizes of one rank. `ops.py` holds the properties of each operator type.
"""
