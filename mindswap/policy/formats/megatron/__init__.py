"""Options of Megatron-LM: launch script (script) -> options -> problems (validity) and `Policy` (policy)."""
