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
from mindswap.simulator.memory_parts import MemoryPart
from mindswap.simulator.step_model import StepModel
from mindswap.simulator.summary import measure_stages

__all__ = ["PeakMemory", "as_published", "format_peaks", "measure_peak"]

GIB = 2**30


@dataclass(frozen=True)
class PeakMemory:
    """The fullest stage of a run.

    Attributes:
        name: of the run.
        stage: pipeline stage.
        parts_bytes: bytes of each `MemoryPart` at the peak.
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
    parts = measure_stages(step.timeline, step.static)[stage].parts
    node = loaded.document.get("context", "max_device_memory")
    allowed = float(str(node.value).upper().removesuffix("GB")) * GIB if node is not None else None
    return PeakMemory(
        name,
        stage,
        tuple(parts[part] for part in MemoryPart),
        None if allowed is None else int(allowed),
        model.outside_bytes,
    )


def format_peaks(peaks: list[PeakMemory]) -> str:
    """The table, in GiB."""
    header = ("GiB at the peak", "stage", *(part.title for part in MemoryPart), "peak", "allowed", "fits",
              "HCCL, outside")  # fmt: skip
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
