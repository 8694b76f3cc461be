"""Swap in PyNative mode: recording of steps, and execution of schedules by hooks."""
