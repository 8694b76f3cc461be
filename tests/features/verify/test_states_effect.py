"""`mindswap verify` of `optimizer: {swap: True}`: dry runs made by hand, and a small Llama on MindSpore's backend."""

import json
from pathlib import Path

import pytest

from mindswap import cli
from mindswap.config.source import load_document
from mindswap.features.dryrun import DryRun
from mindswap.features.dryrun.memory_pool import Kernel, PoolBlock
from mindswap.features.verify.states_effect import IN_PART, NOTHING_MOVES, find_states_effect
from mindswap.runtime.short_run import format_config

ROOT = Path(__file__).resolve().parents[3]
OPTIMIZER = "Default/optimizer-AdamW"
STATES = ("adam_m.wq.weight", "adam_v.wq.weight")
FOREVER = 2**62


def dry_run(num_on_device: int, num_prefetched: int, num_written_back: int, has_blocks: bool = True) -> DryRun:
    """A weight with two states of 200 bytes; a copy of an activation in each direction; two steps."""
    blocks = [PoolBlock(0, FOREVER, 100, "Weight", "wq.weight", 0, 9)]
    blocks += [PoolBlock(0, FOREVER, 200, "Weight", name, 0, 9) for name in STATES[:num_on_device]]
    names = [f"{OPTIMIZER}/MoveTo-op{number}" for number in range(num_prefetched)]
    for step in range(2):
        blocks.append(PoolBlock(10 * step + 2, 10 * step + 4, 50, "Kernel", "Gradients/Default/MoveTo-op9", 3, 3))
        blocks += [PoolBlock(10 * step + 5, 10 * step + 9, 200, "Kernel", name, 3, 8) for name in names if has_blocks]
    kernels = [Kernel("Default/MoveTo-op8", 3, is_offload=True)]
    kernels += [Kernel("Gradients/Default/MoveTo-op9", 4, is_prefetch=True)]
    kernels += [Kernel(name, 4, is_prefetch=True) for name in names]
    kernels += [
        Kernel(f"{OPTIMIZER}/MoveAssign-op{number}", 3, is_write_back=True) for number in range(num_written_back)
    ]
    return DryRun(0, 0, 0, tuple(blocks), {}, tuple(kernels), (), 1.0)


KEPT = dry_run(2, 0, 0)


@pytest.mark.parametrize(
    ("swapped", "plain"),
    [
        (dry_run(0, 2, 2), KEPT),
        (dry_run(0, 2, 2), None),
        (dry_run(0, 2, 3), KEPT),  # in both branches of a condition
        (dry_run(0, 2, 2, has_blocks=False), KEPT),  # memory planned by MindSpore
    ],
)
def test_all_states_are_copied(swapped, plain):
    effect = find_states_effect("rank 0", swapped, plain)
    assert effect.is_as_asked and (effect.num_prefetched, effect.prefetched_bytes) in ((2, 400), (2, None))
    assert (effect.num_without_swap, effect.bytes_without_swap) == ((2, 400) if plain else (None, None))
    assert "yes" in str(effect) and effect.to_json()["ok"]


@pytest.mark.parametrize(
    ("swapped", "plain", "verdict"),
    [
        (KEPT, KEPT, NOTHING_MOVES),
        (KEPT, None, NOTHING_MOVES),
        (dry_run(1, 1, 1), KEPT, IN_PART),
        (dry_run(1, 1, 1), None, IN_PART),
        (dry_run(0, 1, 1), KEPT, IN_PART),  # one state is neither on the card nor copied
        (dry_run(0, 2, 1), KEPT, IN_PART),
    ],
)
def test_states_that_are_not_copied_as_asked(swapped, plain, verdict):
    effect = find_states_effect("rank 0", swapped, plain)
    assert not effect.is_as_asked and not effect.to_json()["ok"]
    assert verdict in str(effect) and " NO" in str(effect).splitlines()[2]


def verify(capsys, folder, **sections):
    data = load_document(str(ROOT / "configs/llama2_7b/case4_swap_and_recompute.yaml")).data()
    sizes = {"hidden_size": 256, "num_heads": 2, "num_layers": 2, "seq_length": 256, "vocab_size": 2000}
    data["model"]["model_config"].update(sizes)
    data |= {"swap_config": {"swap": False}, "recompute_config": {"recompute": False}}
    path = folder / "small.yaml"
    path.write_text(format_config({**data, **{key: {**data[key], **value} for key, value in sections.items()}}, ""))
    code = cli.main(["verify", str(path), "--brief", "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.mindspore
def test_states_on_the_host_are_copied_by_the_backend(capsys, tmp_path):
    """A layer of nine weights with embedding, head and last norm: two states each, 4 bytes for each of 1/8 of them."""
    code, data = verify(capsys, tmp_path, optimizer={"swap": True})
    states = data["optimizer_states"]
    assert (code, data["ok"], states["ok"]) == (0, True, True)
    assert (states["num_on_device"], states["num_prefetched"], states["num_written_back"]) == (0, 24, 24)
    assert states["num_without_swap"] is None and states["name"] == "rank 0, 1 of 2 layers"


def test_on_cpu_all_states_are_on_the_host(capsys, tmp_path):
    """`check` warns of it; `plan -o` verifies the file, and wrote none while this was a fault."""
    code, data = verify(capsys, tmp_path, optimizer={"swap": True}, context={"device_target": "CPU"})
    assert (code, data["ok"], data["optimizer_states"]["ok"]) == (0, True, True)
    assert "device_target: CPU" in data["optimizer_states"]["reason"]


def test_states_on_the_card_are_not_verified(capsys, tmp_path):
    code, data = verify(capsys, tmp_path, optimizer={"swap": False})
    assert (code, data["ok"]) == (0, True) and "optimizer_states" not in data
