"""How many examples a test looks at: few while one works, many in the nightly run (`make test-nightly`)."""

import os

__all__ = ["NIGHTLY", "examples", "is_nightly"]

NIGHTLY = "MINDSWAP_NIGHTLY"


def is_nightly() -> bool:
    """Whether this is the nightly run."""
    return os.environ.get(NIGHTLY, "0") != "0"


def examples(quick: int, nightly: int) -> int:
    """How many examples, for `settings(max_examples=...)` and for loops over seeds."""
    return nightly if is_nightly() else quick
