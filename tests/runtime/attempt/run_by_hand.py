"""`mindswap run --adaptive-memory-optimization` with the stand-in planner: python run_by_hand.py POLICIES WORDS...

POLICIES is JSON: [[name, peak_bytes, step_time_ns], ...].
"""

import json
import os
import signal
import sys
import time
from functools import partial

from mindswap import cli
from mindswap.features import adaptive
from mindswap.runtime.attempt import workers
from mindswap.system.process_tree import stop_descendants
from tests.runtime.attempt import policies


def run(table: str, words: list[str]) -> int:
    """The exit code."""
    makers = {"keep": policies.keep_all, "swap": policies.swap_default, "recompute": policies.recompute_all}
    plan = policies.planner_of([makers[name](peak, time_ns) for name, peak, time_ns in json.loads(table)])

    def plan_slowly(*arguments):
        time.sleep(float(os.environ.get("SLOW_PLAN_S", "0")))
        return plan(*arguments)

    adaptive.AdaptiveRun = partial(adaptive.AdaptiveRun, poll_s=float(os.environ.get("POLL_S", "1")))
    # As patient as a stub needs: it dies at once, and its last lines are there at once.
    workers.DRAIN_S = 0.3
    workers.stop_descendants = partial(stop_descendants, grace_s=1.5)
    adaptive.find_planner = lambda run_dir: plan_slowly
    if moment := os.environ.get("SIGNAL_IN_FORK"):  # which is that of a worker, as the planner is here
        os.register_at_fork(**{moment: lambda: signal.raise_signal(signal.SIGINT)})
    return cli.main(["run", *words])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
