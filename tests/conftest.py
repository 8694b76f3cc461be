"""What all tests need."""

import signal

# A shell without job control starts what it puts into the background with SIGINT ignored, and so would every
# process be that a test starts: the tests of Ctrl-C would have nothing to interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
