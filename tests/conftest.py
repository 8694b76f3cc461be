"""What all tests need."""

import os
import signal

from hypothesis import settings

from tests.strength import NIGHTLY

# A shell without job control starts what it puts into the background with SIGINT ignored, and so would every
# process be that a test starts: the tests of Ctrl-C would have nothing to interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How many examples tests look at is in `tests/strength.py`.
settings.register_profile("nightly")


def pytest_configure(config):
    """`--hypothesis-profile nightly` is another way to say MINDSWAP_NIGHTLY=1; processes of pytest-xdist see it too."""
    if config.getoption("--hypothesis-profile", default=None) == "nightly":
        os.environ[NIGHTLY] = "1"
