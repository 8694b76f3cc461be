"""Processes of a training: the msrun command line, workers, checkpoints, logs, a Ray cluster, training text.

Start reading at `training_command.py` (one training), `msrun.py` (its workers) and `attempt/node.py`.
"""
