"""Formats of a policy: YAML of MindFormers 1.9 and 2.x, options of Megatron-LM."""
