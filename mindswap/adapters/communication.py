"""One rank of many without any other, so that models of MindFormers set their strategies while they are built.

The newer models ask for their rank and make groups of ranks meanwhile. Nothing is ever sent: the network is built
and compiled as far as the frontend goes. Names are those of mindspore 2.9.0 and mindformers 1.9.0.
"""

import contextlib
import importlib
import os
from collections.abc import Iterator

import mindspore as ms
from mindspore.communication import GlobalComm

from mindswap.adapters.replaced import replaced

GPT = "mindformers.parallel_core.training_graph"
PARALLEL_STATE = "mindformers.parallel_core.inference.parallel_state"
MANAGEMENT = "mindspore.communication.management"  # what `get_rank`, `get_group_size`, `create_group` ask
# Where MindFormers remembers groups and splits, for the whole process.
MEMORIES = (
    (f"{GPT}.device_matrix", "layout"),
    (f"{GPT}.device_matrix", "layout_moe"),
    (f"{GPT}.tensor_parallel.utils", "_TP_GROUP_NAME"),
    (f"{GPT}.transformer.moe.utils", "GROUP_NAME"),
    (f"{GPT}.communication", "OP_GROUP_NAME"),
    (f"{GPT}.communication", "CP_GROUP_NAME"),
    (f"{GPT}.communication", "DP_GROUP_NAME"),
)


@contextlib.contextmanager
def on_rank(rank: int, num_ranks: int) -> Iterator[None]:
    """While this lasts, models are built as on one of the ranks of a pipeline stage, in semi-auto parallel mode.

    `rank` is its number in the training: the stages number their ranks alike.
    """
    rank %= num_ranks
    environ = dict(os.environ)
    os.environ.update(RANK_SIZE=str(num_ranks), RANK_ID=str(rank))  # what the models check
    ms.set_auto_parallel_context(
        parallel_mode="semi_auto_parallel", device_num=num_ranks, global_rank=rank, full_batch=True
    )
    try:
        with _without_communication(rank, num_ranks):
            yield
    finally:
        os.environ.clear()
        os.environ.update(environ)
        # semi_auto_parallel cannot be compiled for a CPU. The strategies are on the primitives by now.
        ms.reset_auto_parallel_context()


@contextlib.contextmanager
def _without_communication(rank: int, num_ranks: int) -> Iterator[None]:
    """Answers in place of the communication library, which remember the groups that are made."""
    groups = {GlobalComm.WORLD_COMM_GROUP: list(range(num_ranks))}
    management, state = importlib.import_module(MANAGEMENT), importlib.import_module(PARALLEL_STATE)
    known = [name for name in vars(state) if name.startswith("_") and name.endswith(("_GROUP", "_RANKS"))]
    answers = {
        "_get_rank_helper": lambda group: groups[group].index(rank),
        "_get_size_helper": lambda group: len(groups[group]),
        "_create_group_helper": lambda group, ranks, options=None: groups.update({group: list(ranks)}),
    }
    with contextlib.ExitStack() as undo:
        undo.enter_context(replaced(management, **answers))
        undo.enter_context(replaced(state, _is_initialized=lambda: True, **dict.fromkeys(known)))
        for module_name, name in MEMORIES:
            _forget(undo, getattr(importlib.import_module(module_name), name))
        yield


def _forget(undo: contextlib.ExitStack, memory: object) -> None:
    """Empty a dict, or the attributes of an object, until the end."""
    entries = memory if isinstance(memory, dict) else vars(memory)
    undo.callback(entries.update, dict(entries))
    undo.callback(entries.clear)  # runs before the update
    entries.clear()
