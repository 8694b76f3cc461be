"""Solvers with one signature: (space, progress, effort_permille, starts) -> Search."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mindswap.plan.solvers import fast
from mindswap.plan.solvers.search import Progress, Search
from mindswap.plan.space import Space

__all__ = ["SOLVERS", "Solver"]

Solver = Callable[[Space, Progress, int, Sequence[np.ndarray]], Search]

SOLVERS: Mapping[str, Solver] = {"fast": fast.solve}
