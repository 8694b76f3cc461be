"""Simulated peak memory of published runs next to the memory that MindSpore was allowed to take.

    python benchmarks/published_memory.py FOLDER

FOLDER has configurations of runs that trained, each with its `max_device_memory`. MindSpore takes its GB as GiB
(ascend_memory_adapter.cc: kGBToByte = 1024 << 20). HCCL has its buffers outside of it. Nothing is tuned. Exit code 1
if the peak of a run is above what it was allowed.

These runs are of MindFormers 1.3.0, where lazy_inline needs a pipeline (mindformers/version_control.py:107): without
one they are simulated as one graph, in which equal casts of weights are one.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from mindswap.errors import MindswapError
from mindswap.features.step import Step, load_step
from mindswap.report.tables import format_table
from mindswap.report.timeline_bars import MEMORY_STYLES
from mindswap.simulator.memory import profile_memory
from mindswap.simulator.program import MemoryKind
from mindswap.simulator.step_model import StepModel

__all__ = ["PeakMemory", "as_published", "format_peaks", "measure_peak"]

GIB = 2**30
STATIC_PARTS = ("weights", "optimizer state", "sums of gradients", "workspace", "constants")
KINDS = tuple(MEMORY_STYLES)


@dataclass(frozen=True)
class PeakMemory:
    """The fullest stage of a run.

    Attributes:
        name: of the run.
        stage: pipeline stage.
        parts_bytes: what is there at the peak: `STATIC_PARTS`, then `KINDS`.
        allowed_bytes: `max_device_memory`; None if the configuration does not say.
        outside_bytes: buffers of HCCL, outside of it.
    """

    name: str
    stage: int
    parts_bytes: tuple[int, ...]
    allowed_bytes: int | None
    outside_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Highest memory in MindSpore's pool."""
        return sum(self.parts_bytes)

    @property
    def fits(self) -> bool:
        """True if the run could train."""
        return self.allowed_bytes is None or self.peak_bytes <= self.allowed_bytes


def as_published(loaded: Step) -> StepModel:
    """The step as MindFormers 1.3.0 had it compiled: lazy_inline with a pipeline only."""
    settings = loaded.model.settings
    return loaded.model.with_settings(replace(settings, lacks_lazy_inline=settings.pipeline.num_stages == 1))


def measure_peak(name: str, loaded: Step) -> PeakMemory:
    """Simulates a configuration."""
    model = as_published(loaded)
    step = model.simulate(loaded.policy)
    peaks = [a + s.total_bytes for a, s in zip(step.activation_bytes, step.static, strict=True)]
    stage = peaks.index(max(peaks))
    profile, static = profile_memory(step.timeline, stage), step.static[stage]
    at = profile.time_ns.tolist().index(profile.peak_ns)
    by_kind = dict(zip(MemoryKind, profile.by_kind_bytes[:, at].tolist(), strict=True))
    fixed = (static.parameter_bytes, static.optimizer_bytes, static.gradient_bytes, static.workspace_bytes,
             static.constant_bytes)  # fmt: skip
    node = loaded.document.get("context", "max_device_memory")
    allowed = float(str(node.value).upper().removesuffix("GB")) * GIB if node is not None else None
    return PeakMemory(
        name,
        stage,
        (*fixed, *(by_kind[kind] for kind in KINDS)),
        None if allowed is None else int(allowed),
        model.outside_bytes,
    )


def format_peaks(peaks: list[PeakMemory]) -> str:
    """The table, in GiB."""
    header = ("GiB at the peak", "stage", *STATIC_PARTS, *(MEMORY_STYLES[kind].title for kind in KINDS), "peak",
              "allowed", "fits", "HCCL, outside")  # fmt: skip
    rows = [
        (
            peak.name,
            str(peak.stage),
            *(f"{size / GIB:.1f}" for size in (*peak.parts_bytes, peak.peak_bytes)),
            "-" if peak.allowed_bytes is None else f"{peak.allowed_bytes / GIB:.0f}",
            "yes" if peak.fits else "NO",
            f"{peak.outside_bytes / GIB:.1f}",
        )
        for peak in peaks
    ]
    return format_table(header, rows)


def main(folder: str) -> int:
    """Print the table."""
    peaks = []
    for path in sorted(Path(folder).glob("*.yaml")):
        try:
            peaks.append(measure_peak(path.stem, load_step(str(path))))
        except MindswapError as error:
            print(f"{path.stem}: {str(error).splitlines()[0]}")
    print(format_peaks(peaks))
    return 0 if all(peak.fits for peak in peaks) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
