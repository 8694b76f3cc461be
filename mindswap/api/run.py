"""A simulated step, and everything that is said about it."""

import os
from dataclasses import dataclass
from pathlib import Path

from mindswap.files import file_name, write_new
from mindswap.policy.model import Policy
from mindswap.report.calibration import device_figures
from mindswap.report.dryrun_html import simulated_curve
from mindswap.report.html_parts import in_notebook, memory_curve
from mindswap.report.simulation.html import format_html
from mindswap.report.simulation.insight import write_simulated
from mindswap.report.simulation.text import format_simulation
from mindswap.report.simulation.trace import write_trace
from mindswap.simulator.cost.hardware import Device, without_fragments
from mindswap.simulator.step_model import SimulatedStep, StepModel
from mindswap.simulator.summary import find_causes, host_bytes_per_node, measure_layers, measure_stages
from mindswap.simulator.summary_model import SimulationReport
from mindswap.units import format_bytes, format_count, format_time


@dataclass(frozen=True, eq=False)
class Run:
    """One step under one policy; all figures are simulated. `print` shows the report.

    Attributes:
        model: the step under any policy.
        policy: in layer indices.
        simulated: what came out.
        title: name of what was simulated.
    """

    model: StepModel
    policy: Policy
    simulated: SimulatedStep
    title: str

    @property
    def device(self) -> Device:
        """On what."""
        return self.model.costs.device

    @property
    def step_time_ns(self) -> int:
        """One step, end to end."""
        return self.simulated.step_time_ns

    @property
    def peak_bytes(self) -> int:
        """Highest device memory of any pipeline stage."""
        return self.simulated.peak_bytes

    @property
    def fits(self) -> bool:
        """True if that is within the memory that may be used."""
        return self.peak_bytes <= self.device.usable_memory_bytes

    @property
    def tokens_per_s(self) -> float:
        """Of each card."""
        settings = self.model.settings
        return settings.num_tokens * 1e9 / self.step_time_ns / settings.num_cards

    @property
    def step_time_s(self) -> float:
        """The same in seconds."""
        return self.step_time_ns / 1e9

    @property
    def peak_gib(self) -> float:
        """Highest device memory in GiB."""
        return self.peak_bytes / 2**30

    def report(self) -> SimulationReport:
        """Who waits for whom, what each layer costs, what fills the memory at its peak."""
        model, settings, device, timeline = self.model, self.model.settings, self.device, self.simulated.timeline
        stages = measure_stages(timeline, self.simulated.static)
        host_bytes = [stage.host_bytes for stage in stages]
        return SimulationReport(
            title=self.title,
            device_title=device.title,
            figures=device_figures(device, settings.compute_dtype),
            timeline=timeline,
            stages=stages,
            layers=measure_layers(timeline),
            causes=find_causes(timeline),
            terms=self.simulated.terms,
            num_tokens=settings.num_tokens,
            num_cards=settings.num_cards,
            model_flops=model.model_flops(),
            peak_flops=device.peak_flops[settings.compute_dtype],
            budget_bytes=without_fragments(device, device.usable_memory_bytes),
            host_bytes_per_node=host_bytes_per_node(host_bytes, settings.num_cards, device.num_cards_per_node),
            notes=model.captured.notes,
            outside_bytes=model.outside_bytes,
            outside=outside_line(model, device),
            weight_casts=model.weight_casts,
        )

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """A page that opens offline in a browser.

        Raises:
            DataError: it cannot be written.
        """
        write_new(path, format_html(self.report()), overwrite=True)

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """A Chrome trace (.json, .json.gz) for Perfetto.

        Raises:
            DataError: it cannot be written.
        """
        write_trace(self.report(), Path(file_name(path)))

    def save_insight(self, folder: str | os.PathLike[str]) -> None:
        """Folders `rank_N_ascend_ms` for MindStudio Insight and msprof-analyze, one for a card of each stage.

        Raises:
            DataError: they cannot be written.
        """
        write_simulated(self.report(), Path(file_name(folder)))

    def __str__(self) -> str:
        return format_simulation(self.report())

    def __repr__(self) -> str:
        verdict = "fits in" if self.fits else "does not fit in"
        budget = format_bytes(self.device.usable_memory_bytes)
        figures = f"{format_time(self.step_time_ns)}, {format_bytes(self.peak_bytes)}, {verdict} {budget}"
        return f"<Run {self.title}: {figures}, simulated>"

    def _repr_html_(self) -> str:
        report = self.report()
        name = f"memory of stage {report.peak_stage.stage} over the step, simulated"
        return in_notebook(repr(self), str(self), memory_curve(*simulated_curve(report.peak_stage, 0), name))


def outside_line(model: StepModel, device: Device) -> str:
    """Device memory beside what MindSpore may use, which no policy moves and no budget counts; "" for none."""
    if not model.outside_bytes:
        return ""
    left_bytes = device.memory_bytes - device.usable_memory_bytes
    communicators = f"{format_count(len(model.communicators), 'communicator')} ({', '.join(model.communicators)})"
    left = f"of {format_bytes(left_bytes)} that are left"
    if model.outside_bytes > left_bytes:
        left = f"but only {format_bytes(left_bytes)} are left: lower max_device_memory or HCCL_BUFFSIZE"
    size = format_bytes(model.outside_bytes)
    return f"outside the pool  {size} of HCCL buffers, 2 for each of {communicators}, {left}"
