"""An entry of layer_swap or op_swap lacks a key.

PASS:
    op_swap:
      - {op_name: attention, backward_prefetch: 20, layers: [0]}

FAIL (which operator?):
    op_swap:
      - {backward_prefetch: 20, layers: [0]}
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.problem import Level, Problem

ID = "missing-key"
LEVEL = Level.ERROR

EXAMPLES = {"op_name": r"'attention\.flash_attention'", "backward_prefetch": "10", "layers": "True"}


def check(context: Context) -> Iterator[Problem]:
    """Every key that an entry lacks, at the place of the entry."""
    renamed = {id(missing) for missing in context.renamed_keys.values()}
    for missing in context.settings.missing_keys:
        if id(missing) in renamed:
            continue  # said with the key that stands in its place
        fix = f"{missing.key}: {EXAMPLES[missing.key]}"
        yield Problem(missing.node.location, ID, LEVEL, f"{missing.path}: '{missing.key}' is missing", fix=f"add {fix}")
