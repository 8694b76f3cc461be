"""What all tests need."""

import os
import signal

import pytest
from hypothesis import settings

from mindswap.system.scratch import remove_kept_folders
from tests.strength import NIGHTLY

# A shell without job control starts what it puts into the background with SIGINT ignored, and so would every
# process be that a test starts: the tests of Ctrl-C would have nothing to interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# The same of `nohup make test`: what is ignored stays ignored in the commands.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Every simulation reads it: figures that tests expect are those without.
os.environ.pop("HCCL_BUFFSIZE", None)

# Tests compare what a command says; that something takes its time hangs on the machine.
os.environ["MINDSWAP_PROGRESS"] = "0"
os.environ["MINDSWAP_LANG"] = "en"  # whatever the locale of a developer is

# How many examples tests look at is in `tests/strength.py`; how long one takes hangs on the machine.
settings.register_profile("day", deadline=None)
settings.register_profile("nightly", deadline=None)
settings.load_profile("day")


@pytest.fixture(autouse=True)
def no_kept_folders():
    """Forget the scratch folders that errors of a test left: a command of the next test would report them."""
    yield
    remove_kept_folders()


# Files that take longest come first: whichever worker has the last file, the others wait for it.
LONGEST = (
    "tests/test_demo.py",
    "tests/adapters/test_rewrites.py",
    "tests/runtime/attempt/test_training.py",
    "tests/adapters/test_training.py",
    "tests/test_docs.py",
    "tests/test_family_tables.py",
    "tests/features/prove/test_cli.py",
    "tests/features/plan/test_end_to_end.py",
    "tests/features/verify/test_cli.py",
    "tests/adapters/test_megatron.py",
    "tests/features/inspect/test_rank.py",
)


def pytest_collection_modifyitems(items):
    """Files in the order of `LONGEST`, then the others as they were."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


def pytest_configure(config):
    """`--hypothesis-profile nightly` is another way to say MINDSWAP_NIGHTLY=1; processes of pytest-xdist see it too."""
    if config.getoption("--hypothesis-profile", default=None) == "nightly":
        os.environ[NIGHTLY] = "1"
