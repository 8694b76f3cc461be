"""`swap_config` and `recompute_config` of MindFormers 1.9: schema, parsing, counts per pipeline stage."""
