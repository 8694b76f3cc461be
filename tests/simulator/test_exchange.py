"""Exchange of gradients beside backward, times counted by hand."""

from mindswap.simulator.timeline import exposed_exchange_ns, repeated_exchange_ns

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


def test_every_micro_batch_waits_for_what_forward_does_not_hide():
    # Alone: 60 ns behind backward. Beside 40 ns of forward 20 are left when the next backward begins; its first
    # gradients are there after 30 ns, so they wait for nothing.
    sizes = exchange(s0=30, s1=30, s3=5, s5=5)
    assert repeated_exchange_ns(sizes, BACKWARD, forward_ns=40, num_micro_batches=3) == 60
    # 200 ns for each, and 120 ns of forward and backward. They begin with the last layer, 10 ns after backward does:
    # 130 ns are left behind the first. 40 ns are hidden by forward, so the next begin 90 ns after backward does, and
    # 210 are left; then 170, and 290.
    assert repeated_exchange_ns(exchange(s8=200), BACKWARD, forward_ns=40, num_micro_batches=1) == 130
    assert repeated_exchange_ns(exchange(s8=200), BACKWARD, forward_ns=40, num_micro_batches=2) == 210
    assert repeated_exchange_ns(exchange(s8=200), BACKWARD, forward_ns=40, num_micro_batches=3) == 290
