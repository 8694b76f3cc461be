"""What collectives sent, from communication.json; foreign and broken files."""

import pytest

from mindswap.errors import CostError
from mindswap.simulator.profile import tables as profile_tables
from mindswap.simulator.profile.profile import Transfer
from mindswap.simulator.profile.tables import read_transfers
from tests.simulator.cost.profiles import collective, write_json


@pytest.fixture
def path(tmp_path):
    return tmp_path / "communication.json"


# 14 MB over seven links side by side, 0.1 ms each: 0.7 ms of links within 0.15 ms.
GATHER = collective(0.15, HCCS=(14, 0.7))


def test_steps_and_kinds_of_links(path):
    both = collective(1, HCCS=(2, 0.1), RDMA=(20, 0.8))
    steps = {"step2": {"p2p": {"hcom_send__1_0@77": both}, "collective": {"hcom_allGather__4_3@99": GATHER}}}
    write_json(path, steps)
    assert read_transfers(path) == (
        Transfer("hcom_send__1_0", "HCCS", 2_000_000, 100_000, 1_000_000),
        Transfer("hcom_send__1_0", "RDMA", 20_000_000, 800_000, 1_000_000),
        Transfer("hcom_allGather__4_3", "HCCS", 14_000_000, 700_000, 150_000),
    )


def test_sums_and_what_sent_nothing_are_left_out(path):
    entries = {"hcom_reduceScatter__4_4@99": collective(1.3), "Total Op Info": GATHER}
    write_json(path, {"step": {"p2p": {}, "collective": entries}})
    assert read_transfers(path) == ()


def test_an_operator_without_times_took_none(path):
    write_json(path, {"hcom_x@1": {"Communication Bandwidth Info": GATHER["Communication Bandwidth Info"]}})
    assert read_transfers(path) == (Transfer("hcom_x", "HCCS", 14_000_000, 700_000, 0),)


def test_operators_at_the_top_as_msprof_has_them(path):
    write_json(path, {"hcom_allGather__4_3@99": GATHER, "Total HCCL Operators": GATHER})
    assert [found.op for found in read_transfers(path)] == ["hcom_allGather__4_3"]


@pytest.mark.parametrize(("depth", "num_found"), [(0, 1), (3, 1), (4, 0)])
def test_operators_are_looked_for_three_objects_deep(path, depth, num_found):
    data = {"hcom_allGather__4_3@99": GATHER}
    for _ in range(depth):
        data = {"step": data}
    write_json(path, data)
    assert len(read_transfers(path)) == num_found


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "no object where steps"),
        ({"step1": 3}, "no object where steps"),
        ({"a": {"Communication Bandwidth Info": 3}}, "a: no object where figures"),
        ({"a": {"Communication Bandwidth Info": {"HCCS": 3}}}, "a: no object where figures"),
        ({"a": {"Communication Bandwidth Info": {"HCCS": {"Transit Size(MB)": "x"}}}}, "'x' is no time or size"),
        ({"a": {"Communication Bandwidth Info": {"HCCS": {"Transit Size(MB)": 5}}}}, "'' is no time or size"),
    ],
)
def test_foreign_files(path, data, said):
    write_json(path, data)
    with pytest.raises(CostError, match=f"communication.json: .*{said}"):
        read_transfers(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json(path, content):
    path.write_bytes(content)
    with pytest.raises(CostError, match=r"communication\.json: is no communication\.json"):
        read_transfers(path)


def test_a_file_that_is_too_large(path, monkeypatch):
    assert profile_tables.MAX_BYTES == 256 * 2**20
    monkeypatch.setattr(profile_tables, "MAX_BYTES", 2**20)
    write_json(path, {"hcom_allGather__4_3@99": GATHER})
    path.write_text(path.read_text().ljust(2**20))
    assert read_transfers(path)
    path.write_text(path.read_text().ljust(3 * 2**20))
    with pytest.raises(CostError, match="has 3 MiB, at most 1 are read"):
        read_transfers(path)
