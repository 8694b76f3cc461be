"""Measurements of a graph: lifetimes, saved tensors, work, collectives, and whether a policy took effect."""
