"""mindswap: fine-grained activation SWAP and recomputation for MindSpore and MindFormers.

YAML -> Policy -> attributes on cells -> Graph (from the compiler), see CONTRIBUTING.md.
"""

__version__ = "0.1.0"
