"""The progress of a search, told to stop."""

import signal

import pytest

from mindswap.command_line.progress import INTERRUPTED, SearchBar
from mindswap.planner.solver.search import Stop


def test_the_first_ctrl_c_stops_the_search_and_nothing_else(capfd):
    with SearchBar() as bar, pytest.raises(Stop):
        signal.raise_signal(signal.SIGINT)
        bar()
    assert capfd.readouterr().err == INTERRUPTED


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("searches", [True, False])
def test_the_second_ends_all_also_where_python_drops_what_a_handler_raises(searches):
    class Finalized:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), SearchBar() as bar:
        signal.raise_signal(signal.SIGINT)
        Finalized()
        if searches:
            bar()
