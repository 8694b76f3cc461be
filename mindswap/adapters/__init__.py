"""Adapters: everything that imports MindSpore or MindFormers.

Inputs are configurations and decisions as plain data; results are networks or plain data. `graph/` builds and compiles
networks and sets policies on them, `pynative/` records and executes swap in PyNative mode, `plugin.py` runs inside a
training, `versions.py` covers differences between releases.
"""
