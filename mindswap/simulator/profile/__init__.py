"""Profiles of real machines: files of MindSpore, torch_npu and msprof, and device figures fitted to them."""
