"""Options of Megatron-LM: read from a launch script, validated, and converted to a policy."""
