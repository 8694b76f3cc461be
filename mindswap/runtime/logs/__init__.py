"""Logs of workers: settings, memory, losses and errors."""
