"""Attributes of modules and classes of MindFormers and MindSpore, replaced for a while."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def replaced(owner: object, **values: object) -> Iterator[None]:
    """While this lasts, attributes of a module or a class have other values."""
    originals = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)
