"""Lines of long work: when they come, and when not."""

import threading
import time
from types import SimpleNamespace

import pytest

from mindswap.system import heartbeat


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setenv("MINDSWAP_PROGRESS", "1")
    monkeypatch.setattr(heartbeat, "FIRST_S", 0.05)
    monkeypatch.setattr(heartbeat, "PERIOD_S", 0.1)


def beats(seconds: float, describe=lambda: "planning") -> list[float]:
    """Seconds after which a line came."""
    begin_s, times_s = time.monotonic(), []
    with heartbeat.heartbeat(describe, lambda line: times_s.append(time.monotonic() - begin_s)):
        time.sleep(seconds)
    return times_s


class Clock:
    """Time that passes only while somebody waits, and ends after some seconds."""

    def __init__(self, seconds: float):
        self.now_s, self.end_s = 0.0, seconds

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> bool:
        self.now_s += seconds
        return self.now_s > self.end_s

    def set(self) -> None:
        """The work is over when the time is."""


def lines_within(monkeypatch, seconds: float, text: str) -> list[tuple[float, str]]:
    """Time and text of each line that comes within some seconds, on a clock of their own."""
    clock, lines = Clock(seconds), []
    monkeypatch.setattr(heartbeat, "time", clock)
    monkeypatch.setattr(heartbeat, "threading", SimpleNamespace(Event=lambda: clock, Thread=threading.Thread))
    with heartbeat.heartbeat(lambda: text, lambda line: lines.append((clock.now_s, line))):
        pass
    return lines


def test_pauses_double_up_to_the_period(monkeypatch):
    times_s = [time_s for time_s, _ in lines_within(monkeypatch, 0.55, "planning")]
    assert times_s == pytest.approx([0.05, 0.1, 0.2, 0.3, 0.4, 0.5])


def test_a_line_says_what_goes_on_and_for_how_long(monkeypatch):
    monkeypatch.setattr(heartbeat, "FIRST_S", 40.0)
    monkeypatch.setattr(heartbeat, "PERIOD_S", 50.0)
    lines = [line for _, line in lines_within(monkeypatch, 90, "planning, 7 simulations")]
    assert lines == [f"mindswap: planning, 7 simulations, {time_s} s so far\n" for time_s in (40, 80)]


def test_nothing_is_written_without_an_activity_or_if_switched_off(monkeypatch):
    assert beats(0.2, lambda: "") == []
    monkeypatch.setenv("MINDSWAP_PROGRESS", "0")
    assert beats(0.2) == []


def test_it_ends_with_an_error():
    lines = []
    with pytest.raises(ValueError, match="x"), heartbeat.heartbeat(lambda: "planning", lines.append):
        raise ValueError("x")
    time.sleep(0.1)
    assert lines == []
