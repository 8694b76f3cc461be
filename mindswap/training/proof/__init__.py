"""A run on a real machine against its simulation: configurations of the runs, what they showed, what that proves."""
