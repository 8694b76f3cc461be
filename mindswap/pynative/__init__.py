"""Swap executed in PyNative mode: trace of a step, schedule of moves, ledger of what lives. Pure."""
