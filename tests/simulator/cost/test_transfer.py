"""Copies and collectives, counted by hand. The generic device: links of 10 GB/s, cards of 100 and 10 GB/s."""

from dataclasses import replace

import pytest

from mindswap.simulator.cost.device_file import load_device
from mindswap.simulator.cost.hardware import Link
from mindswap.simulator.cost.transfer import COLLECTIVES, collective_ns, copy_ns, send_ns
from tests.simulator.cost.builders import GENERIC, device

MB = 10**6


def copy_out_ns(size_bytes, known):
    return copy_ns(size_bytes, known.offload, known)


def copy_in_ns(size_bytes, known):
    return copy_ns(size_bytes, known.prefetch, known)


def test_a_copy_is_latency_and_size_by_bandwidth():
    # 10 MB at 10 GB/s: 1 ms.
    assert copy_out_ns(10 * MB, GENERIC) == 10**6
    slow = device(offload=Link(5 * 10**9, 20_000), prefetch=Link(20 * 10**9, 0))
    assert copy_out_ns(10 * MB, slow) == 20_000 + 2 * 10**6
    assert copy_in_ns(10 * MB, slow) == 500_000


def test_copies_are_rounded_up_and_nothing_takes_no_time():
    assert copy_out_ns(1, GENERIC) == 1  # 0.1 ns
    assert copy_in_ns(0, device(prefetch=Link(10**9, 20_000))) == 0


def test_cards_of_a_node_share_the_host():
    # 8 cards, 40 GB/s together: 5 GB/s each.
    assert copy_out_ns(10 * MB, device(host_bandwidth_bytes_per_s=40 * 10**9)) == 2 * 10**6
    assert copy_out_ns(10 * MB, device(host_bandwidth_bytes_per_s=800 * 10**9)) == 10**6


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # 4 ranks, 100 MB, 100 GB/s: 3/4 of it is sent in 0.75 ms.
        ("AllGather", 750_000),
        ("ReduceScatter", 750_000),
        ("AllToAll", 750_000),
        ("AllReduce", 1_500_000),
    ],
)
def test_collectives_within_a_node(kind, expected):
    assert collective_ns(kind, 100 * MB, 4, GENERIC) == expected


def test_a_group_over_two_nodes_crosses_with_its_part():
    # 16 ranks, 160 MB: 7/8 at 100 GB/s within the node; then 1/8 of it, 20 MB, half of that at 10 GB/s.
    assert collective_ns("AllGather", 160 * MB, 16, GENERIC) == 1_400_000 + 1_000_000
    assert collective_ns("AllReduce", 160 * MB, 16, GENERIC) == 2_800_000 + 2_000_000


def test_every_pair_of_an_all_to_all_crosses():
    # 16 ranks, 10 MB for each: 70 MB within the node, 80 MB to the other.
    assert collective_ns("AllToAll", 160 * MB, 16, GENERIC) == 700_000 + 8_000_000


def test_ranks_apart_share_fewer_nodes():
    # Every fourth rank: two in each node of 8. 80 MB: half at 100 GB/s, then half of 40 MB at 10 GB/s.
    assert collective_ns("AllGather", 80 * MB, 4, GENERIC, stride=4) == 400_000 + 2_000_000
    # Every eighth: one in each node, 3/4 of 80 MB at 10 GB/s.
    assert collective_ns("AllGather", 80 * MB, 4, GENERIC, stride=8) == 6_000_000


@pytest.mark.parametrize(("kind", "steps"), [("AllGather", 3), ("AllReduce", 6), ("AllToAll", 7)])
def test_latency_counts_once_a_step(kind, steps):
    # 8 ranks: log2 steps, twice for AllReduce; pairwise exchange has one with each other rank.
    # 7/8 of 80 KB at 100 GB/s are 700 ns.
    slow = device(intranode=replace(GENERIC.intranode, latency_ns=1000), op_latency_ns={"communication": 10_000})
    assert collective_ns(kind, 80_000, 8, slow) == 10_000 + steps * 1000 + COLLECTIVES[kind] * 700


def test_a_group_of_a_full_mesh_has_part_of_the_links():
    # 8 cards with 7 links each; 4 ranks use 3 of them: 100 * 3/7 GB/s. 70 MB, 3/4 sent: 52.5 MB / 42.857 GB/s.
    mesh = device(intranode=replace(GENERIC.intranode, num_mesh_cards=8))
    assert collective_ns("AllGather", 70 * MB, 4, mesh) == 1_225_001
    assert collective_ns("AllGather", 80 * MB, 8, mesh) == 700_000


def test_alone_there_is_nothing_to_send():
    slow = device(op_latency_ns={"communication": 10_000})
    assert collective_ns("AllReduce", MB, 1, slow) == collective_ns("AllReduce", 0, 8, slow) == 0
    assert collective_ns("AllReduce", 1, 8, slow) == 10_001


def test_latency_of_the_network_between_nodes():
    """Each of the 8 ranks of the other node is one step of an AllToAll; a send is one step."""
    far = replace(GENERIC.internode, latency_ns=1000)
    slow = device(internode=far, op_latency_ns={"communication": 10_000})
    assert collective_ns("AllToAll", 160 * MB, 16, slow) == 10_000 + 700_000 + 8_000_000 + 8 * 1000
    assert send_ns(10 * MB, False, slow) == 10_000 + 1000 + 10**6


def test_sending_to_one_card():
    assert send_ns(10 * MB, True, GENERIC) == 100_000
    assert send_ns(10 * MB, False, GENERIC) == 10**6
    # One of the 7 links of a mesh of 8: 70 MB at 100/7 GB/s.
    mesh = device(intranode=replace(GENERIC.intranode, num_mesh_cards=8))
    assert send_ns(70 * MB, True, mesh) == 4_900_001


@pytest.mark.parametrize(("kind", "measured_us"), [("AllGather", 1140), ("ReduceScatter", 1250)])
def test_collectives_of_a_profile(kind, measured_us):
    # Profile D of docs/device_figures.md: 8 x 20,971,520 bytes over 8 cards.
    assert collective_ns(kind, 8 * 20_971_520, 8, load_device()) == pytest.approx(measured_us * 1000, rel=0.1)


def test_a_send_of_a_profile():
    # Profile D: 20,971,520 bytes to another node in 896 us.
    assert send_ns(20_971_520, False, load_device()) == pytest.approx(896_000, rel=0.05)


def test_an_exchange_with_both_neighbours():
    """First one way, then the other: twice the time of handing it to another card, between nodes if any two are."""
    card = load_device("atlas_800t_a2")
    assert collective_ns("SendReceive", 1 << 20, 4, card, 2) == 2 * send_ns(1 << 20, True, card)
    assert collective_ns("SendReceive", 1 << 20, 8, card, 2) == 2 * send_ns(1 << 20, False, card)


def test_of_a_full_mesh_all_links_are_used_by_all_cards_only():
    """8 cards with 7 links each: 2 ranks use one of them, 7 use 6, 8 and more (over nodes of 16) all 7."""
    mesh = replace(GENERIC.intranode, num_mesh_cards=8)
    node_of_16 = device(intranode=mesh, num_cards_per_node=16)
    size_bytes = 840 * MB
    sent = {2: size_bytes // 2, 7: size_bytes * 6 // 7, 8: size_bytes * 7 // 8, 16: size_bytes * 15 // 16}
    links = {2: 1, 7: 6, 8: 7, 16: 7}
    for num_ranks, sent_bytes in sent.items():
        expected_ns = sent_bytes * 7 / (100 * links[num_ranks])  # 100 GB/s with 7 links, so bytes * 7 / (100 * links)
        assert collective_ns("AllGather", size_bytes, num_ranks, node_of_16) == pytest.approx(expected_ns, rel=1e-6)
