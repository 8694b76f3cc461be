"""Configurations of MindFormers 2.x (PyNative mode): text only, nothing here needs MindSpore."""
