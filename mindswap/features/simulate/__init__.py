"""A loaded training step (`LoadedStep`), input of simulation, plan and dry run, and one simulation of it (`Run`)."""

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mindswap.config.nodes import Document
from mindswap.config.step_settings import lacks_lazy_inline
from mindswap.config.weight_sharding import has_single_micro_step
from mindswap.errors import SimulationError, require
from mindswap.features.simulate.insight import write_simulated
from mindswap.features.simulate.report import format_simulation
from mindswap.features.simulate.trace import write_trace
from mindswap.files import file_name, write_new
from mindswap.planner.write import is_written_without_swap
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.equivalence import truncated_policy
from mindswap.policy.model import Policy
from mindswap.report.device_figures import device_figures
from mindswap.report.html import in_notebook, memory_curve, simulated_curve
from mindswap.report.step_page import format_html
from mindswap.simulator.cost.budget import MemoryBudget, budget_of_device
from mindswap.simulator.cost.hardware import Device
from mindswap.simulator.report_data import SimulationReport
from mindswap.simulator.step_model import SimulatedStep, StepModel
from mindswap.simulator.summary import find_causes, host_bytes_per_node, measure_layers, measure_stages
from mindswap.steps.recorded import is_trace_path, read_trace
from mindswap.units import format_bytes, format_count, format_time


@dataclass(frozen=True, eq=False)
class Run:
    """A simulated step under one policy. All figures are simulated. `print` shows the report.

    Attributes:
        model: model of the step for any policy.
        policy: the simulated policy, in layer indices.
        simulated: timeline and memory of the step.
        title: name for reports.
        is_level_kept: whether the file has the same `memory_optimize_level` with the policy; swap needs O0.
        actual_peaks_bytes: derived: peak device memory of each stage with the fragments of a pool that maps no
            pages, or the gaps between addresses that MindSpore plans (memory_optimize_level O1).
    """

    model: StepModel
    policy: Policy
    simulated: SimulatedStep
    title: str
    is_level_kept: bool = True
    actual_peaks_bytes: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        peaks_bytes = self.model.actual_peaks_bytes(self.simulated, is_level_kept=self.is_level_kept)
        object.__setattr__(self, "actual_peaks_bytes", peaks_bytes)

    @property
    def device(self) -> Device:
        """The simulated device."""
        return self.model.costs.device

    @property
    def step_time_ns(self) -> int:
        """Step time in ns."""
        return self.simulated.step_time_ns

    @property
    def peak_bytes(self) -> int:
        """Peak device memory in bytes, the highest of all pipeline stages."""
        return self.simulated.peak_bytes

    @property
    def actual_peak_bytes(self) -> int:
        """Peak device memory in bytes, with the fragments or gaps of `actual_peaks_bytes`."""
        return max(self.actual_peaks_bytes)

    @property
    def fits(self) -> bool:
        """Return whether the peak with fragments is within the usable device memory."""
        return self.memory.fits(self.actual_peak_bytes)

    @property
    def memory(self) -> MemoryBudget:
        """Memory budget that the peak with fragments is compared with."""
        return budget_of_device(self.device)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second and card."""
        settings = self.model.settings
        return settings.num_tokens * 1e9 / self.step_time_ns / settings.num_cards

    @property
    def step_time_s(self) -> float:
        """Step time in seconds."""
        return self.step_time_ns / 1e9

    @property
    def peak_gib(self) -> float:
        """Peak device memory in GiB."""
        return self.peak_bytes / 2**30

    def report(self) -> SimulationReport:
        """Return the report: waiting times and their causes, costs of layers, live memory at the peak."""
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
            budget_bytes=self.memory.usable_bytes,
            margin_permille=self.memory.margin_permille,
            actual_peaks_bytes=self.actual_peaks_bytes,
            host_bytes_per_node=host_bytes_per_node(host_bytes, settings.num_cards, device.num_cards_per_node),
            notes=model.captured.notes,
            outside_bytes=model.outside_bytes,
            outside=outside_line(model, device),
        )

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write an HTML page that needs no network.

        Raises:
            DataError: if it cannot be written.
        """
        write_new(path, format_html(self.report()), overwrite=True)

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write a Chrome trace (.json, .json.gz) for Perfetto.

        Raises:
            DataError: if it cannot be written.
        """
        write_trace(self.report(), Path(file_name(path)))

    def save_insight(self, folder: str | os.PathLike[str]) -> None:
        """Write folders `rank_N_ascend_ms` for MindStudio Insight and msprof-analyze, one per pipeline stage.

        Raises:
            DataError: if they cannot be written.
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
    """Describe device memory that MindSpore does not manage, so that no budget includes it; "" without any.

    A limit of the pool that is not below the memory of the device is described instead: MindSpore stops.
    """
    limit_bytes = model.settings.pool_limit_bytes
    if limit_bytes >= device.memory_bytes:
        offered = f"the {format_bytes(device.memory_bytes)} that CANN offers of {device.title}"
        limit_text = f'at most "{device.usable_memory_bytes // 2**30}GB"'
        return (
            f"max_device_memory  {format_bytes(limit_bytes)} is not below {offered}, so MindSpore stops: {limit_text}"
        )
    if not model.outside_bytes:
        return ""
    unmanaged_bytes = max(device.memory_bytes - max(device.usable_memory_bytes, limit_bytes), 0)
    names = model.settings.communicators
    communicators = f"{format_count(len(names), 'communicator')} ({', '.join(names)})"
    remainder = f"of the {format_bytes(unmanaged_bytes)} that the pool leaves free"
    if model.outside_bytes > unmanaged_bytes:
        remainder = (
            f"but the pool leaves only {format_bytes(unmanaged_bytes)} free: lower max_device_memory or HCCL_BUFFSIZE"
        )
    size = format_bytes(model.outside_bytes)
    return f"outside the pool  {size} of HCCL buffers, 2 for each of {communicators}, {remainder}"


@dataclass(frozen=True, eq=False)
class LoadedStep:
    """A training step that can be simulated.

    Attributes:
        document: the configuration; empty for a network without one.
        policy: policy of the configuration, in layer indices.
        model: model of the step for any policy.
        nameable_trees: cell trees with all operator names that the configuration can use; None if no table has them.
        path: file of the configuration; None for a network without one.
        text: text of the configuration if a plan changed more in it than the policy; None for that of `path`.
    """

    document: Document
    policy: Policy
    model: StepModel
    nameable_trees: tuple[CellNode, ...] | None
    path: Path | None = None
    text: str | None = None

    @property
    def device(self) -> Device:
        """The simulated device."""
        return self.model.costs.device

    @property
    def title(self) -> str:
        """Name in reports."""
        return self.path.stem if self.path is not None else "network"

    def __repr__(self) -> str:
        layers, cards = len(self.model.captured.sample.layer_map), self.model.settings.num_cards
        return (
            f"<Step {self.title}: {format_count(layers, 'layer')}, {format_count(cards, 'card')}, {self.device.title}>"
        )

    def config_text(self) -> str:
        """Return the text of the configuration, also of a recorded step; bytes that are not UTF-8 are surrogates."""
        if self.text is not None:
            return self.text
        if self.path is None:
            return ""
        if is_trace_path(str(self.path)):
            return read_trace(str(self.path))[0].config
        return self.path.read_bytes().decode("utf-8", "surrogatepass")

    def simulate(self, policy: Policy | None = None, title: str = "") -> Run:
        """Simulate the step under a policy.

        Args:
            policy: policy in layer indices; None for that of the configuration.
            title: name for reports; "" for that of the step.

        Returns:
            The simulated step.

        Raises:
            SimulationError: if it cannot be simulated; has the line of `select_recompute` in the configuration.
        """
        chosen = self.policy if policy is None else policy
        require("policy", chosen, Policy)
        has_swap = chosen.is_swap_enabled if policy is None else self.is_swap_written(chosen)
        model = (self.as_compiled_with_swap() if has_swap else self.as_compiled_without_swap()).model
        try:
            simulated = model.simulate(chosen)
        except SimulationError as error:
            section = self.document.get("recompute_config", "select_recompute") if policy is None else None
            raise SimulationError(f"{section.location}: {error}" if section is not None else str(error)) from None
        return Run(model, chosen, simulated, title or self.title, is_level_kept=not has_swap)

    def truncated(self, kept: Sequence[int] | None, num_micro_batches: int | None = None) -> "LoadedStep":
        """Return the step with fewer layers, which correspond to the layers `kept`, or with fewer micro-batches.

        Args:
            kept: layers of the full model that the layers of the truncated one represent; None for all layers.
            num_micro_batches: number of micro-batches; None for the same number.
        """
        model, policy = self.model, self.policy
        if kept is not None:
            model, policy = model.truncated(kept), truncated_policy(policy, tuple(kept))
        if num_micro_batches is not None:
            model = model.with_micro_batches(num_micro_batches)
        return replace(self, policy=policy, model=model)

    def is_swap_written(self, policy: Policy) -> bool:
        """Return whether the configuration has `swap: True` with a policy, as `plan` writes it."""
        if not policy.is_swap_enabled or type(self.model) is not StepModel:
            return policy.is_swap_enabled
        return not is_written_without_swap(policy, self.document, self.model.captured.num_layers)

    def as_compiled_with_swap(self) -> "LoadedStep":
        """Return the step as compiled with swap enabled, which sets lazy_inline: then all-gather precedes the cast."""
        return self._as_compiled(has_swap=True)

    def as_compiled_without_swap(self) -> "LoadedStep":
        """Return the step as compiled with swap disabled: weights are cast before the all-gather."""
        return self._as_compiled(has_swap=False)

    def _as_compiled(self, has_swap: bool) -> "LoadedStep":
        if type(self.model) is not StepModel or not has_single_micro_step(self.document):
            return self
        settings = self.model.settings
        lacks = lacks_lazy_inline(self.document, has_swap)
        is_same = settings.sharding.is_cast_after_gather is has_swap and settings.lacks_lazy_inline is lacks
        return self if is_same else _recompiled(self, has_swap)


# Two placements of the optimizer states, with and without swap.
@functools.lru_cache(maxsize=4)
def _recompiled(step: LoadedStep, has_swap: bool) -> LoadedStep:
    """Return a step of one micro-batch with or without lazy_inline. Cached, as its model caches simulations."""
    settings = step.model.settings
    sharding = replace(settings.sharding, is_cast_after_gather=has_swap)
    settings = replace(settings, sharding=sharding, lacks_lazy_inline=lacks_lazy_inline(step.document, has_swap))
    return replace(step, model=step.model.with_settings(settings))
