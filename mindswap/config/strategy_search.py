"""Search of parallel strategies by MindSpore (`parallel_mode: 2`), which no simulation repeats."""

from collections.abc import Iterator

from mindswap.config.nodes import Document
from mindswap.config.weight_sharding import AUTO_MODES

# Of `parallel.search_mode`: keeps the strategies that the model sets, and derives the others from them.
PROPAGATION = "sharding_propagation"


def find_search_caveats(document: Document) -> Iterator[str]:
    """Yield caveats of configurations in which MindSpore itself searches how operators are split.

    Args:
        document: a configuration of MindFormers 1.9.
    """
    mode, search = document.value("parallel", "parallel_mode"), document.value("parallel", "search_mode")
    is_automatic = mode in AUTO_MODES and not isinstance(mode, bool) and document.is_parallel
    if is_automatic and search not in (None, PROPAGATION):
        yield (
            f"parallel.search_mode: {search}: MindSpore searches how operators are split, and may find others "
            "than the strategies of the model, which are simulated; mindswap dryrun has what it finds"
        )
