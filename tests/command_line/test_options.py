"""The progress of a search, told to stop."""

import signal
import time

import pytest

from mindswap.command_line.progress import INTERRUPTED, SearchBar
from mindswap.planner.solver.search import Stop
from mindswap.system import heartbeat


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


def test_a_search_that_takes_long_shows_its_simulations_where_stderr_is_no_terminal(capfd, monkeypatch):
    monkeypatch.setenv("MINDSWAP_PROGRESS", "1")
    monkeypatch.setattr(heartbeat, "FIRST_S", 0.05)
    with SearchBar() as bar:
        bar()
        bar()
        time.sleep(0.08)
    assert capfd.readouterr().err == "mindswap: planning, 2 simulations, 0 s so far\n"
