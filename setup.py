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
TEST_TOOLS = ["scipy>=1.11,<2", "pytest>=8", "pytest-xdist>=3", "hypothesis>=6"]
CHECK_TOOLS = [
    "jsonschema>=4,<5",
    "ruff==0.17.5",
    "mypy==2.4.1",
    "import-linter==2.17",
    "types-PyYAML",
    "types-psutil",
    "types-tqdm",
]
NOTEBOOK_TOOLS = ["nbclient>=0.10", "nbformat>=5.10", "ipykernel>=6.29"]
SITE_TOOL = "mkdocs-material>=9.5,<10"

setup(
    name="mindswap",
    version=VERSION,
    description="Fine-grained activation SWAP and recomputation for MindSpore and MindFormers",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    keywords="mindspore mindformers ascend npu activation swap offload recompute training memory",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    python_requires=">=3.10",
    # Makes `pip install -e` a plain path: a script beside a checkout finds the package, not the folder of that name.
    package_dir={"": "."},
    packages=find_packages(include=["mindswap", "mindswap.*"]),
    package_data={"mindswap": ["data/**/*.json", "data/**/*.yaml", "data/dryrun/*.c", "data/report/*"]},
    # Bounded where a next major version may change what is called; numpy is left to MindSpore, which wants 1.26.
    install_requires=[
        "Jinja2>=3,<4",
        "PyYAML>=6,<7",
        "psutil>=5.9,<8",
        "regex>=2024.5.15",
        "tqdm>=4.60,<5",
        "numpy>=1.26,<3",
        "numba>=0.60,<1",
        "highspy>=1.7,<1.16",  # 1.16.0 prints a banner to stdout that no option stops
    ],
    extras_require={
        "cpu": [*CPU_STACK, PLOT_LIBRARY],
        "plot": [PLOT_LIBRARY],
        "dryrun": ["ziglang>=0.13"],  # a C compiler, for machines without one
        "ray": ["ray>=2.40,<3"],
        "test": [*TEST_TOOLS, *NOTEBOOK_TOOLS],
        "docs": [SITE_TOOL],
        "check": [*TEST_TOOLS, *CHECK_TOOLS, SITE_TOOL],
    },
    entry_points={"console_scripts": ["mindswap = mindswap.cli:main"]},
)
