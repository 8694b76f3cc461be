"""Base of all solvers: simulate each assignment once, keep the best one, stop on request."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mindswap.planner.stage_problem import KEEP, Score, StageProblem
from mindswap.simulator.timeline import Timeline

# Minimum gain of a policy entry in ppm of the step time, to keep plans readable.
ENTRY_PPM = 100
# Before the first simulation: worse than every other.
NO_SCORE = Score(2**62, 2**62, 2**62, 2**62)

# Called after each simulation; may raise `Stop`.
Progress = Callable[[], None]


class Stop(Exception):  # noqa: N818 a signal as StopIteration, no error
    """Signal to stop the search; the best assignment so far is the result."""


class Interruptible:
    """Progress function that remembers a stop, so that every later search ends at once."""

    def __init__(self, progress: Progress = lambda: None):
        self.progress = progress
        self.is_stopped = False

    def __call__(self) -> None:
        """Call the progress function; once it has raised `Stop`, raise it at every call."""
        if not self.is_stopped:
            try:
                self.progress()
            except Stop:
                self.is_stopped = True
        if self.is_stopped:
            raise Stop


class Search:
    """Simulates assignments of a stage problem and keeps the best.

    Args:
        stage_problem: decisions and how they are simulated.
        max_evaluations: limit of simulations.
        progress: called after each simulation.

    Attributes:
        best: best assignment so far: it fits, or comes closest; everything kept before the first simulation.
        best_score: its score.
        num_evaluations: number of simulations.
        enough_ns: step time at which the search may end; 0 without one.
    """

    def __init__(self, stage_problem: StageProblem, max_evaluations: int, progress: Progress = lambda: None):
        self.stage_problem = stage_problem
        self.max_evaluations = max_evaluations
        self.progress = progress
        self.best = np.zeros(stage_problem.costs.copy_ns.shape, np.int64)
        self.best_score = NO_SCORE
        self.num_evaluations = 0
        self.enough_ns = 0
        self._known: dict[bytes, Score] = {}
        self._timelines: dict[bytes, Timeline] = {}  # of the best assignment and of the last one

    @property
    def is_exhausted(self) -> bool:
        """Return whether the limit of simulations is reached, or an assignment fits and is fast enough."""
        has_enough = self.fits and self.best_score.cost_ns <= self.enough_ns
        return self.num_evaluations >= self.max_evaluations or has_enough

    @property
    def fits(self) -> bool:
        """Return whether the best assignment fits."""
        return self.best_score.fits

    def score(self, assignment: np.ndarray) -> Score:
        """Return the score of an assignment, simulated unless cached."""
        cached = self._known.get(assignment.tobytes())
        return cached if cached is not None else self.run(assignment)[0]

    def run(self, assignment: np.ndarray) -> tuple[Score, Timeline]:
        """Simulate an assignment."""
        timeline = self.stage_problem.timeline(assignment)
        score = self.stage_problem.score(timeline)
        entry_ns = score.step_time_ns * ENTRY_PPM // 1_000_000
        score = replace(score, cost_ns=score.step_time_ns + _num_entries(assignment) * entry_ns)
        self.num_evaluations += 1
        key = assignment.tobytes()
        self._known[key] = score
        if score < self.best_score:
            self.best, self.best_score = assignment.copy(), score
        best_key = self.best.tobytes()
        self._timelines = {each: known for each, known in self._timelines.items() if each == best_key}
        self._timelines[key] = timeline
        self.progress()
        return score, timeline

    def timeline(self, assignment: np.ndarray) -> Timeline:
        """Return the timeline of an assignment, simulated unless it is the best or the last one."""
        known = self._timelines.get(assignment.tobytes())
        return known if known is not None else self.run(assignment)[1]


def _num_entries(assignment: np.ndarray) -> int:
    """Return the number of policy entries: one for each distinct value of each group."""
    group = np.broadcast_to(np.arange(assignment.shape[1]), assignment.shape)
    decided = assignment != KEEP
    return len(np.unique(np.stack((group[decided], assignment[decided])), axis=1).T)
