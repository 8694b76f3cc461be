"""`swap` and `recompute` of MindFormers 2.x (PyNative mode), parsed without MindSpore."""
