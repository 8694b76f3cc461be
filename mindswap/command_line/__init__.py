"""One module for each command: parse options, call one function of `api`, print.

In: arguments. Out: text or JSON, and an exit code.
Open first: `verify.py`; `options.py` has the options that several commands share, `../cli.py` is the door of errors.
"""
