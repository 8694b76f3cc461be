"""Solvers with one signature: (space, progress, effort_permille, starts) -> Search."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mindswap.planner.solvers import fast
from mindswap.planner.solvers.search import Progress, Search
from mindswap.planner.space import Space

__all__ = ["SOLVERS", "Solver"]

Solver = Callable[[Space, Progress, int, Sequence[np.ndarray]], Search]

SOLVERS: Mapping[str, Solver] = {"fast": fast.solve}
