"""What all tests need."""

import signal

from hypothesis import settings

# A shell without job control starts what it puts into the background with SIGINT ignored, and so would every
# process be that a test starts: the tests of Ctrl-C would have nothing to interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Properties without a number of examples of their own: few in `make check`, many in `make nightly`
# (pytest --hypothesis-profile=nightly).
settings.register_profile("quick", max_examples=60, deadline=None)
settings.register_profile("nightly", max_examples=1000, deadline=None)
settings.load_profile("quick")
