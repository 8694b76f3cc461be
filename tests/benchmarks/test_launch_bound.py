from launch_bound import launched_end_ns

from tests.simulator.builders import program_of

# Times worked out by hand.


def test_a_host_that_is_ahead_adds_its_first_launch():
    # Launched at 2, 4, 6; the device runs 2-12, 12-22, 22-32.
    assert launched_end_ns(program_of("F10 F10 B10"), 2, 0) == 32
    assert launched_end_ns(program_of("F10 F10 B10"), 0, 0) == 30


def test_a_device_waits_for_the_launches_of_short_kernels():
    # Launched at 15, 30, 45: 15-25, 30-40, 45-55.
    assert launched_end_ns(program_of("F10 F10 B10"), 15, 0) == 55
    # An operator without duration is no kernel: 15-25, 30-40.
    assert launched_end_ns(program_of("F10 F0 B10"), 15, 0) == 40


def test_a_collective_takes_the_host_its_own_time():
    # Launched at 2, 32, 34: compute 2-12, the collective 32-37, which the last operator waits for: 37-47.
    assert launched_end_ns(program_of("F10 C5@0 B10@1"), 2, 30) == 47
    # Nothing waits for it: compute 2-12 and 34-44.
    assert launched_end_ns(program_of("F10 C5@0 B10"), 2, 30) == 44
