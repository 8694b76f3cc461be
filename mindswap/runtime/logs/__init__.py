"""Logs of workers: what they report about settings, memory, losses and errors."""
