"""One attempt to run a training: its command, its workers on one or more nodes, its checkpoints and its state.

`features/adaptive` decides when an attempt ends and the next one starts; `features/prove` runs short ones.
"""
