"""Sequences are cut (`seq_split_num`) where MindFormers does not take that, or beside recompute of whole layers.

PASS:
    parallel_config: {pipeline_stage: 2, seq_split_num: 4}

FAIL (there is no pipeline):
    parallel_config: {pipeline_stage: 1, seq_split_num: 4}
"""

from collections.abc import Iterator
from itertools import chain

from mindswap.check.context import Context
from mindswap.config.sequences import find_ring_faults, find_sequence_faults
from mindswap.document.problem import Level, Problem

ID = "sequence-pieces"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """What MindFormers 1.9.0 refuses (base_trainer.py, models/llama), and what it would compute wrong with swap on."""
    # With swap off the run is MindFormers' own affair: nothing here may stop it.
    level = LEVEL if context.settings.is_swap_enabled else Level.WARNING
    for fault in chain(find_sequence_faults(context.document), find_ring_faults(context.document)):
        yield Problem(fault.node.location, ID, level, fault.message, fault.allowed, fault.fix)
