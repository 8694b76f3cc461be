"""Bytes, rates and times as text, both ways."""

import pytest

from mindswap.units import (
    BANDWIDTH_UNITS,
    TIME_UNITS,
    common_unit,
    format_bandwidth,
    format_bytes,
    format_time,
    parse_bytes,
    parse_quantity,
)

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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("54GiB", 54 * 2**30),
        ("1.5 TB", 1_500_000_000_000),
        ("1.5TiB", 3 * 2**39),
        (" 512 B ", 512),
        ("0.1KB", 100),
        ("1e3MB", 10**9),
    ],
)
def test_sizes(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["54", "GiB", "", "54 G", "54gib", "-1GiB", "1,5GiB", "54GB/s", "nanGiB", "1 2GiB"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="write a number with its unit, such as 54GiB; units are B, KiB"):
        parse_bytes(text)


def test_rates():
    assert parse_quantity("20GB/s", BANDWIDTH_UNITS, "20GB/s") == 20 * 10**9
    assert parse_quantity("1.6TiB/s", BANDWIDTH_UNITS, "20GB/s") == int(1.6 * 2**40)
    for text in ("20Gb/s", "20GB", "160Gbit/s"):
        with pytest.raises(ValueError, match="write a number with its unit, such as 20GB/s; units are B/s, "):
            parse_quantity(text, BANDWIDTH_UNITS, "20GB/s")


def test_times():
    found = [parse_quantity(text, TIME_UNITS, "20us") for text in ("20us", "1.5 ms", "2s", "7ns")]
    assert found == [20_000, 1_500_000, 2 * 10**9, 7]
    with pytest.raises(ValueError, match="such as 20us; units are ns, "):
        parse_quantity("20", TIME_UNITS, "20us")


@pytest.mark.parametrize(
    ("time_ns", "expected"),
    [(0, "0 ns"), (999, "999 ns"), (1000, "1.00 us"), (24_310_000, "24.3 ms"), (430_400, "430 us"), (10**9, "1.00 s")],
)
def test_times_as_text(time_ns, expected):
    assert format_time(time_ns) == expected


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(23 * 10**9, "23.0 GB/s"), (1_759_218_604_441, "1.8 TB/s"), (5, "5.0 B/s"), (0, "0.0 B/s")],
)
def test_rates_as_text(rate, expected):
    assert format_bandwidth(rate) == expected
