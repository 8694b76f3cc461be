"""Number of processes that a configuration of MindFormers 2.x can be trained with."""

from mindswap.config.nodes import Document, is_int

ONE_PROCESS = (
    "MindFormers 2.1.0 applies swap and recompute with several processes only, and ignores them silently with one"
)


def find_max_processes(document: Document) -> int | None:
    """Return the largest number of processes; None if the batch sizes do not tell.

    A step has one micro-batch or more: at most `global_batch_size / local_batch_size` data parallel ranks.

    Args:
        document: a configuration of MindFormers 2.x.
    """
    total, local = (document.value("training", key) for key in ("global_batch_size", "local_batch_size"))
    if not is_int(total) or not is_int(local) or min(total, local) < 1:
        return None
    count = max(total // local, 1)
    for key in ("tensor_parallel", "context_parallel", "pipeline_parallel"):
        count *= document.count("parallelism", key)
    return count
