"""Swap and recompute in graph mode: networks of MindSpore and MindFormers, and their compiled graphs."""
