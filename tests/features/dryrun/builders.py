"""A proof on 8 cards that never was: round numbers, for checks and reports."""

from mindswap.features.prove.proof import MeasuredRun, Proof, Simulated, Variant, Worker
from mindswap.runtime.logs.step_report import ReportedStep
from mindswap.simulator.profile.overlap import Overlap

GIB = 1 << 30
MS = 1_000_000
LOSSES = (10.5, 10.25, 10.125, 10.0, 9.5)
# The first step compiles, the last is profiled: neither counts.
STEPS_MS = (60_000, 102, 100, 101, 5_000)


def worker(number, peak_bytes=20 * GIB, losses=LOSSES, slower_ms=0):
    steps = tuple(
        ReportedStep(i + 1, loss, (ms + slower_ms) * MS)
        for i, (loss, ms) in enumerate(zip(losses, STEPS_MS, strict=True))
    )
    return Worker(number, steps, peak_bytes, peak_bytes)


def measured(peak_bytes=20 * GIB, losses=LOSSES, overlap=None, **changes):
    workers = tuple(worker(number, peak_bytes, losses, slower_ms=number) for number in range(2))
    return MeasuredRun(0, 70.0, workers, overlap=overlap, **{"is_profiled": True, **changes})


LAYER = {"ok": True, "num_pairs": 8, "swapped_bytes": GIB}
VERIFIED = {"ok": True, "error": None, "layers": [LAYER], "logs": {"ok": True, "findings": []}}


def proof(**changes):
    off = Variant("off", "nothing swapped, nothing recomputed", "off.yaml", Simulated(100 * MS, 20 * GIB, 0, 0, 0))
    yaml = Variant(
        "yaml", "as the configuration asks", "yaml.yaml", Simulated(110 * MS, 15 * GIB, 40 * MS, 4 * MS, 2 * GIB),
        effect=VERIFIED,
    )  # fmt: skip
    # 36 of 40 ms are hidden: 90 %.
    overlap = Overlap(16, 2 * GIB, 40 * MS, 36 * MS, MS, 90 * MS)
    runs = (
        Variant(**{**vars(off), "measured": measured()}),
        Variant(**{**vars(yaml), "measured": measured(15 * GIB, overlap=overlap, profile="p")}),
    )
    settings = {"num_workers": 2, "num_steps": 5, "is_profiled": True, "variants": runs, "num_layers": 4, **changes}
    return Proof("llama.yaml", "Ascend", "Atlas 800T A2", **settings)


def with_yaml(whole, **changes):
    """The proof with another run of the user's own policy."""
    from dataclasses import replace

    off, yaml = whole.variants
    return replace(whole, variants=(off, replace(yaml, **changes)))
