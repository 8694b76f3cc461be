"""Lines of long work: when they come, and when not."""

import time

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


def test_pauses_double_up_to_the_period():
    """Lines at 0.05, 0.1, 0.2, 0.3, ... s: with doubled pauses alone the fifth would come after 0.8 s."""
    assert len(beats(0.55)) in (5, 6)


def test_a_line_says_what_goes_on_and_for_how_long(monkeypatch):
    lines = []
    with heartbeat.heartbeat(lambda: "planning, 7 simulations", lines.append):
        time.sleep(0.08)
    assert lines == ["mindswap: planning, 7 simulations, 0 s so far\n"]


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
