"""Results as text, JSON, pictures, HTML and traces.

In: frozen results of the other rooms. Out: text and files. Nothing is decided or resolved here.
Open first: `tables.py`, then the file of what is shown; `simulation/` has the simulated step.
"""
