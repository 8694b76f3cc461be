"""The user's request: statements of a configuration -> one `Policy` -> a decision for each operator.

In: a `Document`. Out: `Policy` (model), the decision per layer and operator (resolve), counts per stage as
indices (expand). `convert.py` turns one form into another; `megatron/` and `mindformers_2x/` are other formats.
Open first: `model.py`, then `read.py` and `resolve.py`.
"""
