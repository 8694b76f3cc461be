"""Faults of this machine that keep a training from doing what it says: facts (gather) -> findings (machine.examine)."""
