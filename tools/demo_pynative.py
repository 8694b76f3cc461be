"""Swap that is executed: the Llama of the four cases trains in PyNative mode on CPU, and its activations really move.

    python tools/demo_pynative.py

In graph mode the CPU backend cannot offload, so there the compiled graph is the proof. In PyNative mode mindswap moves
the memory itself: the storages of saved tensors leave the process's own memory for shared memory and come back. What is
given back is filled with NaN first, so that one byte too few would show in the losses.
"""

import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import mindswap
from mindswap.adapters.mindformers import build_network
from mindswap.policy.model import ALL_LAYERS, LayerSwap, Policy
from mindswap.pynative.ledger import predict
from mindswap.pynative.schedule import make_schedule
from mindswap.report.tables import format_table

CONFIGS = Path(__file__).resolve().parent.parent / "configs" / "llama2_7b" / "cpu"
NUM_STEPS = 5
POLICIES = {
    "case1_default_swap": None,
    "case2_layer_swap": None,
    "case3_op_swap": None,
    "case4_swap_and_recompute": None,
    "every layer": Policy(is_swap_enabled=True, layer_swap=(LayerSwap(ALL_LAYERS, 10),)),
}


def main() -> int:
    """Train without swap and under each policy; exit code 0 if every check holds."""
    reference, _ = train(CONFIGS / "case2_layer_swap.yaml", Policy())
    rows, failures = [], []
    for name, policy in POLICIES.items():
        config = CONFIGS / f"{name if policy is None else 'case2_layer_swap'}.yaml"
        losses, swap = train(config, policy or mindswap.load_policy(str(config)))
        totals = swap.totals
        without = predict(swap.trace, make_schedule(swap.trace, {}, range(len(swap.layers))))
        checks = {
            "losses as without swap": losses == reference,
            "bytes back": totals.offloaded_bytes == totals.prefetched_bytes > 0,
            "peak as predicted": totals == swap.predicted,
            "nothing left behind": totals.device_bytes[-1] == 0 and swap.copies.host_bytes == 0,
            "every step swapped": swap.executor.num_passes == NUM_STEPS - 1,
        }
        failures += [f"{name}: {check}" for check, holds in checks.items() if not holds]
        rows.append(
            [
                name,
                f"{losses[0]:.3f} -> {losses[-1]:.3f}",
                "yes" if checks["losses as without swap"] else "NO",
                kib(totals.offloaded_bytes),
                kib(totals.prefetched_bytes),
                kib(without.peak_device_bytes),
                kib(totals.peak_device_bytes),
                kib(swap.predicted.peak_device_bytes),
            ]
        )
        swap.remove()
    header = [
        "PyNative, executed", "loss", "as without swap", "KiB out", "KiB back", "peak without swap", "peak", "predicted"
    ]  # fmt: skip
    print(format_table(header, rows))
    print(f"{NUM_STEPS} steps on CPU; peaks are KiB of saved activations that are on the device, of one step.")
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


def train(config: Path, policy: Policy) -> tuple[list[float], "mindswap.session.network.Swap | None"]:
    """Losses of some steps, and the swap that ran in them."""
    ms.set_seed(0)
    network, _ = build_network(str(config), Policy(is_swap_enabled=True))
    ms.set_context(mode=ms.PYNATIVE_MODE)
    values = np.random.default_rng(0)
    for weight in network.trainable_params():
        weight.set_data(ms.Tensor(values.normal(0, 0.05, weight.shape).astype(np.float32)))
    network.set_train(True)
    swap = None
    if policy.is_swap_enabled:
        mindswap.apply(network, policy)
        swap = mindswap.running_swap(network)
        swap.poison = swap.watch_all = True
    optimizer = nn.Adam(network.trainable_params(), learning_rate=2e-3)
    step = ms.value_and_grad(network, None, optimizer.parameters)
    tokens = ms.Tensor(values.integers(4, 260, (2, 65)).astype(np.int32))
    losses = []
    for _ in range(NUM_STEPS):
        loss, gradients = step(tokens)
        optimizer(gradients)
        losses.append(float(ops.mean(loss).asnumpy()))
    return losses, swap


def kib(size_bytes: int) -> str:
    """Bytes as KiB."""
    return f"{size_bytes / 1024:.1f}"


if __name__ == "__main__":
    sys.exit(main())
