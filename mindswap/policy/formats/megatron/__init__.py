"""Options of Megatron-LM: launch script, options, their validity, and the policy that they mean."""
