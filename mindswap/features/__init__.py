"""The door: what commands and Python users call.

In: a path or a network. Out: results of a whole question, kept in a cache where they took a compile.
One function for each command: `check_config`, `explain_config`, `convert_config`, `load_step` (simulate, plan, dryrun),
`compare_configs`, `inspect_memory`, `verify`, `sweep`, `calibrate_device`, `examine_machine`, `record_step`,
`prepare_data`, `prepare_training` (run), `train_adaptively`, `read_run` (status), `prove`, `write_example`.
Open first: `step.py`.
"""
