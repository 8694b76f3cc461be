"""Diagnoses of a machine: facts (`probe.py` gathers them), limits and resources, installed software."""
