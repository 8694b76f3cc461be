"""Exchange of gradients beside backward, times counted by hand."""

from mindswap.simulate.exchange import exposed_exchange_ns

# Each of 8 layers takes 10 ns.
BACKWARD = [0, *[10] * 8, 0]


def exchange(**durations: int) -> list[int]:
    """Durations by section: `s3=5` for the section of layer 2."""
    return [durations.get(f"s{section}", 0) for section in range(len(BACKWARD))]


def test_what_is_complete_at_the_end_of_backward_is_exposed():
    # Layers 4 and 2 are done 40 and 20 ns before the end, and sent by then; 30 + 30 ns follow the end.
    assert exposed_exchange_ns(exchange(s0=30, s1=30, s3=5, s5=5), BACKWARD) == 60


def test_backward_hides_what_is_sent_in_time():
    assert exposed_exchange_ns(exchange(s5=30), BACKWARD) == 0
    assert exposed_exchange_ns(exchange(), BACKWARD) == 0


def test_one_after_the_other():
    # 45 ns from 40 ns before the end, then 5.
    assert exposed_exchange_ns(exchange(s3=5, s5=45), BACKWARD) == 10
