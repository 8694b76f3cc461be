"""Changes to a configuration, as `{"a.b.c": value}`."""

import copy


def edited(config: dict, edits: dict) -> dict:
    """A copy of `config` with values set at key paths; None removes the key.

    Aliases of YAML stay shared: what changes under `train_dataset` changes everywhere it is used.
    """
    config = copy.deepcopy(config)
    for path, value in edits.items():
        *parents, last = path.split(".")
        section = config
        for name in parents:
            section = section[name]
        if value is None:
            section.pop(last, None)
        else:
            section[last] = value
    return config
