"""What one rank of the legacy Llama keeps, against a sum worked out from the architecture, and its gradients."""

import itertools

import pytest
import yaml

from tests.adapters.edits import edited
from tests.adapters.graphs import CPU_CASES, layer_swap, op_swap
from tests.adapters.reports import inspect_jobs
from tests.strength import is_nightly

pytestmark = pytest.mark.mindspore

# By day half of them: those have every pair of two settings.
MIXES = (
    tuple(itertools.product(("float32", "float16"), (True, False), (1, 8)))
    if is_nightly()
    else (("float32", True, 1), ("float32", False, 8), ("float16", True, 8), ("float16", False, 1))
)
# No stand-in for attention, no swap, strategies of the model in force, heads and vocabulary that 8 ranks can share.
# Flash attention has no float32 kernel on Ascend; the compiler takes it all the same, and so it is in the table.
SETTINGS = {
    "mindswap": None,
    "context.device_target": "Ascend",
    "swap_config": op_swap(),
    "parallel.parallel_mode": 1,
    "parallel_config.data_parallel": 1,
    "model.model_config.num_layers": 1,
    "model.model_config.num_heads": 8,
    "model.model_config.vocab_size": 264,
}
BATCH, SEQ, HIDDEN, HEADS, FFN = 2, 64, 64, 8, 192
FLOAT32 = 4


# Every way in which backward can come by what it reads.
POLICIES = {
    "all swapped": {"swap_config": layer_swap((1, True))},
    "attention swapped, ffn recomputed": {
        "swap_config": op_swap(("attention", 1, True)),
        "recompute_config": {"select_recompute": {"feed_forward": True}},
    },
    "all recomputed": {"swap_config": op_swap(), "recompute_config": {"recompute": True}},
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Mix or policy -> report of its last rank."""
    folder = tmp_path_factory.mktemp("mixes")
    source = yaml.safe_load((CPU_CASES / "case1_default_swap.yaml").read_text())
    edits = {
        mix: {
            "model.model_config.compute_dtype": mix[0],
            "model.model_config.use_flash_attention": mix[1],
            "parallel_config.model_parallel": mix[2],
        }
        for mix in MIXES
    }
    edits |= {name: {**edits["float16", True, 8], **policy} for name, policy in POLICIES.items()}
    jobs = []
    for number, changes in enumerate(edits.values()):
        config = folder / f"{number}.yaml"
        config.write_text(yaml.safe_dump(edited(source, {**SETTINGS, **changes})))
        jobs.append({"config": str(config), "rank": changes["parallel_config.model_parallel"] - 1})
    return dict(zip(edits, inspect_jobs(jobs), strict=True))


def block_bytes(dtype, has_flash, num_ranks):
    """What backward of one block reads, operator by operator, on one of `num_ranks` ranks.

    Norms, softmax and rotary embedding compute in float32 and so do not change with the dtype of the products.
    """
    is_half = dtype == "float16"
    element = 2 if is_half else FLOAT32
    tokens = BATCH * SEQ
    hidden, ffn = tokens * HIDDEN * element, tokens * FFN * element
    rows = BATCH * HEADS * SEQ  # of attention, all heads

    # A norm is x * rsqrt(mean(x^2)) * weight: the first product reads x and rsqrt, the second x * rsqrt and weight.
    # x is a residual sum: of two norms, one reads the sum of this block's attention; the other reads the output of
    # the block before, and the output of this block, which the next norm reads, counts in its place. In float16 what
    # is read is a cast of x to float32 instead, and casts of x * rsqrt and of the weight for the second product.
    norm = tokens * HIDDEN * FLOAT32 + tokens * FLOAT32
    norm += hidden + (HIDDEN * element if is_half else 0)
    # The products of q, k, v read the first norm, those of w1 and w3 the second. All of this is whole on every rank.
    whole = 2 * norm + 2 * hidden

    # Attention: rotated q and k, transposed v, and the output with its heads merged, which the product of wo reads.
    cut = 4 * hidden
    if has_flash:
        # Its output before the merge; maximum and sum of each row, 8 times each; an output of one element.
        cut += hidden + 2 * rows * 8 * FLOAT32
        whole += element
    else:
        # Probabilities of each row, and in float16 their cast.
        cut += rows * SEQ * FLOAT32 + (rows * SEQ * element if is_half else 0)
    # w1 (read by SiLU), SiLU and w3 (read by their product), and the product (read by w2).
    cut += 4 * ffn
    # Products read casts of the float32 weights: wq, wk, wv, wo, and w1, w2, w3.
    cut += (4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN) * element if is_half else 0
    return whole + cut // num_ranks


def test_two_sums_in_plain_numbers():
    """With b s h = 8192, b s ffn = 24576, b heads s = 1024."""
    # float32, no flash, 1 rank: norms 2 (8192 + 8192 + 128), inputs 2 x 8192, attention 4 x 8192 + 1024 x 64,
    # ffn 4 x 24576, all times 4.
    assert block_bytes("float32", False, 1) == 4 * (33_024 + 16_384 + 32_768 + 65_536 + 98_304) == 984_064
    # float16, flash, 8 ranks: norms 2 (32768 + 512 + 16384 + 128), inputs 2 x 16384, one element of 2; an eighth of
    # attention 5 x 16384 + 2 x 1024 x 8 x 4, ffn 4 x 49152, weights 2 (4 x 4096 + 3 x 12288).
    assert block_bytes("float16", True, 8) == 99_584 + 32_768 + 2 + (147_456 + 196_608 + 106_496) // 8 == 188_674


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: f"{mix[0]}-{'flash' if mix[1] else 'plain'}-tp{mix[2]}")
def test_bytes_of_a_block(reports, mix):
    block, _ = reports[mix]["layers"]
    assert block["kept_bytes"] == block_bytes(*mix)
    assert not [note for note in reports[mix]["notes"] if "not resolved" in note]


@pytest.mark.parametrize("name", POLICIES)
def test_gradients_are_cut_whichever_way_backward_reads_its_operands(reports, name):
    """The products of backward read copies from the host and second runs of forward as they read what was kept."""
    report = reports[name]
    block = report["layers"][0]
    assert block["kept_bytes"] < block_bytes("float16", True, 8) * 3 // 4
    assert not [note for note in report["notes"] if "not resolved" in note]
