"""MindSpore in PyNative mode: hooks, storages, copies."""
