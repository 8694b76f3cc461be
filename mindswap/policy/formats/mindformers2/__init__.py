"""`swap` and `recompute` of MindFormers 2.x (PyNative mode). Text only: nothing here needs MindSpore."""
