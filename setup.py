"""For tools that call `setup.py`; the package and its tools are described in pyproject.toml."""

from setuptools import setup

setup()
