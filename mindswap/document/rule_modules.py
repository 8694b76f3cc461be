"""The rules of a folder: one module each, found by its file name."""

import functools
import importlib
import pkgutil
from types import ModuleType

__all__ = ["rule_modules"]


@functools.cache
def rule_modules(package: str) -> dict[str, ModuleType]:
    """Every rule of a package by its id, in alphabetical order of the files."""
    folder = importlib.import_module(package).__path__
    names = sorted(module.name for module in pkgutil.iter_modules(folder))
    modules = (importlib.import_module(f"{package}.{name}") for name in names)
    return {module.ID: module for module in modules}
