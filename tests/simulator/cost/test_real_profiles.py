"""Profiles of real cards; nothing of them is in this repository. CONTRIBUTING.md says how to get them.

`MINDSWAP_REAL_PROFILES` names a folder with checkouts (or the folders named here) of two public repositories:
`mstt` (xiaobingling93-pixel/Ascend-mstt) and `msinsight` (xiaobingling93-pixel/Ascend-msinsight). Figures below were
worked out by hand from their tables: time = FLOPs / (peak x fraction) + 5 us fixed cost of a matrix operator.
"""

import os
from pathlib import Path

import pytest

from mindswap.errors import CostError
from mindswap.simulator.cost.calibrate import calibrate
from mindswap.simulator.cost.device_file import load_device
from mindswap.simulator.cost.profile import Engine
from mindswap.simulator.cost.profile_files import load_profile

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
    # 13 products; the largest, 4096 x 12288 by 12288 x 6144, does 618.5 GFLOP in 2048.2 us: 302 of 376 TFLOPS. All
    # 4.41 TFLOP in 14.25 ms, of which 65 us are fixed costs, are 310.6 TFLOPS: 0.826; the middle of them, 618.5 GFLOP
    # in 1980.5 us, 313.1 TFLOPS: 0.832.
    figures, result = fitted(f"{ADVISOR}/advisor_backend/compute_advice", "atlas_800t_a2_376t")
    assert 828 <= figures["compute_fraction"].fitted <= 836
    assert figures["compute_fraction"].num_samples == 13
    # LayerNormV3: 50.3 million numbers in 320.6 us, less 2 us: 158 G/s.
    assert 150e9 <= figures["norm_rate"].fitted <= 165e9
    # Mul of 604 MB in 471 us, Cast of 453 MB in 335 and 359: 1.28, 1.35 and 1.26 TB/s of 1.76: 0.72 to 0.77; single
    # kernels of up to 629 MB that found their inputs in the cache (2.0) move the middle little.
    assert 715 <= figures["memory_bandwidth_fraction"].fitted <= 770
    # Seven DSAStatelessGenBitMask and seven AI_CPU Cast are no vector kernels.
    assert (
        sum(kernel.engine is Engine.OTHER for kernel in read(f"{ADVISOR}/advisor_backend/compute_advice").kernels) == 14
    )
    assert not result.explained.is_absurd
    # Begun with a card of 20 cores.
    doubt = "matrix kernels run on 24 cores"
    assert not any(doubt in note for note in result.notes)
    assert any(doubt in note for note in fitted(f"{ADVISOR}/advisor_backend/compute_advice")[1].notes)


def test_attention_on_20_cores():
    # 2 sequences of 4096, 4 heads of 128, causal: 2 products x 2 x 2 x 4 x 128 x 4096 x 4097 / 2 = 34.4 GFLOP in
    # 406.6 - 5 us: 85.6 of 294.6 TFLOPS. Backward has 5 products: 85.9 GFLOP in 759.7 - 5 us: 113.9.
    figures, _ = fitted(f"{ADVISOR}/compute_advice/data")
    assert 285 <= figures["attention_fraction"].fitted <= 295
    assert 380 <= figures["attention_grad_fraction"].fitted <= 392
    # Shapes of products in this file were edited and contradict each other.
    assert figures["compute_fraction"].fitted is None


def test_training_of_two_ranks_on_20_cores():
    # 1 sequence of 4096, 16 heads of 128: 68.7 GFLOP in 880 us, 171.8 in 2250 us.
    figures, result = fitted("msinsight/test/st/level2")
    assert 262 <= figures["attention_fraction"].fitted <= 272
    assert 255 <= figures["attention_grad_fraction"].fitted <= 264
    assert (figures["attention_fraction"].num_samples, figures["attention_grad_fraction"].num_samples) == (56, 56)
    # 4096 x 4096 by 4096 x 1024, most often run: 34.36 GFLOP in 183 - 5 us are 193 of 294.9 TFLOPS; its 128 tiles take
    # 7 rounds of 20 cores, 140 places: 193 / 294.9 x 140 / 128 = 0.716.
    assert 700 <= figures["compute_fraction"].fitted <= 735
    # Vector kernels beyond the cache: 0.60 to 0.68 TB/s of 1.76.
    assert 330 <= figures["memory_bandwidth_fraction"].fitted <= 390
    # One link: 440 MB reduced in 26.3 ms at best, 155.6 MB gathered in 8.5: 16.7 and 18.3 of 28 GB/s.
    assert 590 <= figures["collective_fraction"].fitted <= 660
    assert result.explained.explained_permille >= 700
    assert (result.num_kernels, len(read("msinsight/test/st/level2").steps)) == (5012, 2)


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
