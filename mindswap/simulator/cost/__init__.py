"""Costs: devices, duration of operators and copies, static memory, the memory budget."""
