"""Package of mindswap. Tool settings are in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
VERSION = re.search(r'__version__ = "([^"]+)"', (ROOT / "mindswap" / "version.py").read_text()).group(1)

# The pair that mindswap is built for. It is an extra, not a requirement: on Ascend the MindSpore
# that is there matches the CANN of the machine, and pip must not replace it.
CPU_STACK = ["mindspore==2.9.0", "mindformers==1.9.0"]
PLOT_LIBRARY = "matplotlib>=3.8"
TEST_TOOLS = ["pytest>=8", "pytest-xdist>=3", "hypothesis>=6"]
CHECK_TOOLS = ["ruff==0.17.5", "mypy==2.4.1", "types-PyYAML", "types-tqdm"]

setup(
    name="mindswap",
    version=VERSION,
    description="Fine-grained activation SWAP and recomputation for MindSpore and MindFormers",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["mindswap", "mindswap.*"]),
    package_data={"mindswap": ["data/**/*.json", "data/**/*.yaml", "data/report/*"]},
    install_requires=["PyYAML>=6", "regex>=2024.5.15", "tqdm>=4.60", "numpy>=1.26", "numba>=0.60", "scipy>=1.11"],
    extras_require={
        "cpu": [*CPU_STACK, PLOT_LIBRARY],
        "plot": [PLOT_LIBRARY],
        "test": TEST_TOOLS,
        "check": [*TEST_TOOLS, *CHECK_TOOLS],
    },
    entry_points={"console_scripts": ["mindswap = mindswap.cli:main"]},
)
