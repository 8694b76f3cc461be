"""Runs a compiled step operator by operator; knows nothing of the simulator that it is a judge of."""
