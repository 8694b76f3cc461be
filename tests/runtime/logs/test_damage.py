"""Damaged logs, at random: nothing raises, and no damage makes a bad log look good."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from mindswap.features.verify.log_comparison import compare_logs
from mindswap.features.verify.log_report import format_logs, logs_to_json
from tests.runtime.logs.samples import CPU_NOTE, EXPECTED, OFFLOAD_WARNING, SET, STATISTICS, log_text, scan
from tests.strength import examples

WHOLE = (log_text(mark=CPU_NOTE) + OFFLOAD_WARNING + "\n" + STATISTICS.format(used=1, actual=2)).encode()
# One line is not there, or says something else.
BAD = [log_text([*SET[:index], *SET[index + 1 :]]).encode() for index in range(4)]
BAD += [log_text([*SET[:3], SET[3].replace("value=10", "value=1")]).encode()]


def judge(*logs: bytes) -> bool:
    """The verdict; the report can always be written."""
    report = compare_logs(EXPECTED, [scan(data, worker) for worker, data in enumerate(logs)])
    assert format_logs(report)
    assert logs_to_json(report)["ok"] == report.is_ok
    return report.is_ok


def shuffle_together(first: bytes, second: bytes, seed: int, longest: int) -> bytes:
    """Two processes that write into one file, piece by piece."""
    rng = random.Random(seed)
    rest, mixed = [first, second], []
    while any(rest):
        turn = rng.randrange(2)
        size = rng.randint(1, longest)
        mixed.append(rest[turn][:size])
        rest[turn] = rest[turn][size:]
    return b"".join(mixed)


@given(st.binary(max_size=2000))
def test_random_bytes(data):
    assert not judge(data)


@given(st.integers(0, len(WHOLE)), st.integers(0, len(WHOLE)), st.binary(max_size=50))
def test_random_bytes_in_a_log(start, end, data):
    judge(WHOLE[:start] + data + WHOLE[end:])


@given(st.sampled_from(BAD), st.integers(0, 10_000), st.integers(0, 10_000))
def test_a_cut_never_makes_a_bad_log_good(bad, start, end):
    assert not judge(bad[:start])
    assert not judge(bad[start:])
    assert not judge(bad[:start] + bad[end:])


@settings(max_examples=examples(60, 200))
@given(st.sampled_from(BAD), st.integers(0, 1 << 30), st.sampled_from([3, 40, 200, 2000]))
def test_mixing_never_makes_a_bad_log_good(bad, seed, longest):
    mixed = shuffle_together(bad, bad, seed, longest)
    assert not judge(mixed)
    assert not judge(mixed, WHOLE)


@given(st.integers(0, 1 << 30))
def test_whole_lines_of_two_workers_mixed_are_good(seed):
    rng = random.Random(seed)
    lines = [log_text().splitlines(keepends=True) for _ in range(2)]
    mixed = []
    while any(lines):
        mixed.append(rng.choice([part for part in lines if part]).pop(0))
    assert judge("".join(mixed).encode())


@given(st.integers(0, len(WHOLE)))
def test_a_cut_in_the_good_log_is_good_only_after_the_lines(cut):
    assert not judge(WHOLE[:cut]) or cut > WHOLE.index(b"Set op_swap at layer 3") + len(EXPECTED[3][0])
