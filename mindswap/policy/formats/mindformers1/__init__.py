"""`swap_config` and `recompute_config` of MindFormers 1.9: schema, reading, counts per pipeline stage."""
