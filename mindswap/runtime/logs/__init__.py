"""Logs of workers of a training run, and whether they agree with the policy."""
