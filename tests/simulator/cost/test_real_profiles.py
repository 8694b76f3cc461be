"""Profiles of real cards; nothing of them is in this repository. CONTRIBUTING.md says how to get them.

`MINDSWAP_REAL_PROFILES` names a folder with checkouts (or the folders named here) of two public repositories:
`mstt` (xiaobingling93-pixel/Ascend-mstt) and `msinsight` (xiaobingling93-pixel/Ascend-msinsight). Figures below were
worked out by hand from their tables: time = FLOPs / (peak x fraction) + 5 us fixed cost of a matrix operator.
"""

import os
from pathlib import Path

import pytest

from mindswap.errors import CostError
from mindswap.simulator.cost.device_file import load_device
from mindswap.simulator.profile.calibration import calibrate
from mindswap.simulator.profile.files import load_profile

FOLDER = os.environ.get("MINDSWAP_REAL_PROFILES", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="MINDSWAP_REAL_PROFILES names no folder")
ADVISOR = "mstt/profiler/msprof_analyze/test/ut/advisor"
TEXT = "msinsight/test/data/pytorch/text"
GPT3 = "msinsight/server/src/test/test_data"


def read(path):
    return load_profile(Path(FOLDER) / path)


def fitted(path, device="atlas_800t_a2"):
    result = calibrate(read(path), load_device(device))
    return {figure.name: figure for figure in result.figures}, result


def test_gpt_with_tensor_parallel_8_on_24_cores():
    _, result = fitted(f"{ADVISOR}/advisor_backend/compute_advice", "atlas_800t_a2_376t")
    products = [m for m in result.measurements if m.key.op in ("MatMul", "BatchMatMul")]
    # 13 products; 4096 x 12288 by 12288 x 6144 and its gradients are the largest, some 300 of 376 TFLOPS.
    assert sum(m.count for m in products) == 13 and 1_900_000 <= products[0].duration_ns <= 2_100_000
    # Seven DSAStatelessGenBitMask and seven AI_CPU Cast are no vector kernels.
    assert sum(not kernel.units for kernel in read(f"{ADVISOR}/advisor_backend/compute_advice").kernels) == 14
    # Begun with a card of 20 cores.
    doubt = "matrix kernels run on 24 cores"
    assert not any(doubt in note for note in result.notes)
    assert any(doubt in note for note in fitted(f"{ADVISOR}/advisor_backend/compute_advice")[1].notes)


def test_training_of_two_ranks_on_20_cores():
    figures, result = fitted("msinsight/test/st/level2")
    # One link: 440 MB reduced in 26.3 ms at best, 155.6 MB gathered in 8.5: 16.7 and 18.3 of 28 GB/s.
    assert 590 <= figures["collective_fraction"].fitted <= 660
    assert (result.num_kernels, result.num_covered, len(result.measurements)) == (5012, 4311, 120)
    # 56 runs of attention over a sequence of 4096 with 16 heads of 128.
    (attention,) = (m for m in result.measurements if m.key.op == "FlashAttentionScore")
    assert attention.count == 56 and 850_000 <= attention.duration_ns <= 910_000


def test_copies_of_level_2():
    # Two copies of 19,267,584 bytes in 828 and 850 us, 26 of 256 and 1168 bytes in 2.2 to 2.8 us: 23.0 GB/s. Two are
    # too few to be believed.
    profile = read(f"{TEXT}/level2")
    assert (len(profile.copies), profile.num_unsized_copies, profile.level) == (28, 0, "Level2")
    figures, result = fitted(f"{TEXT}/level2")
    fit = result.links["h2d"]
    assert 22.7e9 <= fit.bandwidth_bytes_per_s <= 23.3e9
    assert 2_200 <= fit.latency_ns <= 2_500
    assert figures["h2d"].objection == "too few copies of 1.0 MiB or more (2); 3 are needed"


def test_copies_of_level_1_have_no_size():
    # 14 of each rank go over the link; 10 of each are within the device.
    profile = read(f"{TEXT}/level1")
    assert (len(profile.copies), profile.num_unsized_copies, profile.level) == (0, 28, "Level1")


def test_level_0_has_no_shapes():
    with pytest.raises(CostError, match="no columns Input Shapes"):
        read(f"{TEXT}/level0")


def test_collectives_of_gpt_3_on_16_cards():
    # AllGather: 146.8 MB over seven links in 1.137 ms at best: 18.6 of 28 GB/s; ReduceScatter was not counted then.
    # Sends between nodes: 21 MB in 0.896 ms; the AllReduce of 131 MB waited 97 of its 103 ms and says nothing.
    profile = read(f"{GPT3}/test_rank_0")
    assert {transfer.link for transfer in profile.transfers} == {"HCCS", "RDMA"}
    figures, _ = fitted(f"{GPT3}/test_rank_0")
    assert 650 <= figures["collective_fraction"].fitted <= 680
    assert figures["internode_fraction"].objection == "too few collectives (1); 3 are needed"


def test_both_names_of_columns_are_the_same_kernels():
    assert read(f"{GPT3}/test_kernel_parse").kernels == read(f"{GPT3}/test_rank_0").kernels
