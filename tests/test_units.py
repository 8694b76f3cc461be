"""Bytes as people read them."""

import pytest

from mindswap.units import common_unit, format_bytes

MIB = 2**20


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (86 * MIB, "86.0 MiB"), (1154 * MIB, "1.1 GiB")],
)
def test_a_size_alone_takes_the_unit_that_fits(size, text):
    assert format_bytes(size) == text


def test_sizes_to_compare_share_a_unit():
    sizes = (1154 * MIB, 1114 * MIB, 0)
    unit = common_unit(sizes)
    assert [format_bytes(size, unit) for size in sizes] == ["1154.0 MiB", "1114.0 MiB", "0.0 MiB"]


def test_a_size_too_small_for_the_unit_keeps_its_own():
    assert format_bytes(2, "MiB") == "2 B"


@pytest.mark.parametrize(
    ("largest", "unit"), [(0, "B"), (99, "B"), (200 * 1024, "KiB"), (99 * MIB, "KiB"), (100 * MIB, "MiB")]
)
def test_the_unit_shows_one_digit_in_a_hundred(largest, unit):
    assert common_unit([largest]) == unit
