"""Everything that imports MindSpore or MindFormers.

In: configurations and decisions as plain data. Out: built, compiled or trained networks, again as plain data.
`versions.py` has what differs between releases, `pynative/` records and executes a swap in PyNative mode.
Open first: `mindformers.py` (build and compile), `apply.py` (decisions -> cells), `plugin.py` (inside a training).
"""
