"""The planner of an adaptive run, asked in a process of its own.

That process takes the memory of MindSpore with it when it ends, and a compiler that crashes does not end the run. The
one that asks imports nothing of what plans: it is to be there at once, and small beside the training.
"""

import json
import subprocess
import sys
from pathlib import Path

from mindswap.errors import PlanError
from mindswap.graph.cache import from_plain, to_plain
from mindswap.training.adaptive.model import CLASSES, Corrections, NothingFits, Planner, TrainingPlan
from mindswap.training.launch.processes import tie_to_parent

_MODULE = "mindswap.api.adaptive_planner"
# Of what a child prints before it crashes.
NUM_LAST_LINES = 5


def planner_in_child(environment: dict[str, str]) -> Planner:
    """`make_plan` in a process of its own, with this environment."""

    def plan(config_path: Path, budget_bytes: int, corrections: Corrections) -> TrainingPlan | NothingFits:
        asked = json.dumps([str(config_path), budget_bytes, to_plain(corrections)])
        try:
            # A session of its own: Ctrl-C is for this process, which then ends the child.
            done = subprocess.run(
                [sys.executable, "-m", _MODULE, asked], env=environment, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, errors="replace", check=False, start_new_session=True,
                preexec_fn=tie_to_parent(),
            )  # fmt: skip
        except OSError as error:
            raise PlanError(f"the planner cannot be started: {error.strerror or error}") from error
        lines = done.stdout.splitlines()
        if done.returncode == 1 and lines:
            raise PlanError(json.loads(lines[-1])["error"])
        if done.returncode != 0:
            last = "\n".join(done.stderr.splitlines()[-NUM_LAST_LINES:])
            raise PlanError(f"the planner crashed, exit code {done.returncode}\n{last}")
        answer = from_plain(json.loads(lines[-1]), CLASSES)
        assert isinstance(answer, TrainingPlan | NothingFits)
        return answer

    return plan
