"""Passes: functions from `Graph` to `Graph`, one subject a file, each after a pass of MindSpore's compiler."""
