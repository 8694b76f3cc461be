"""Calibration of a device with a profile: durations of operators, and fitted parameters of the links."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mindswap.graph.ops import ComputeUnit
from mindswap.simulator.cost.cost_table import Measurement
from mindswap.simulator.cost.hardware import Device, figure_values, with_figures
from mindswap.simulator.profile.fits import LARGE_BYTES, MIN_SAMPLES, LinkFit, fit_contention, fit_link, fit_share
from mindswap.simulator.profile.profile import (
    Profile,
    ProfiledKernel,
    can_measure,
    is_matrix_kernel,
    measure,
)
from mindswap.units import format_bytes

# Limits of kernel time / computing time of the steps: both are from the same run, and differ only by overlap.
FEWEST_PERMILLE, MOST_PERMILLE = 800, 1200


@dataclass(frozen=True)
class FigureFit:
    """Fit of one device parameter to a profile."""

    name: str  # name of the figure in `hardware.FIGURES`
    before: int  # value of the given device, in its smallest unit
    fitted: int | None = None  # fitted value; None if the profile has no data for it
    num_samples: int = 0  # copies or collectives
    # median relative error of the fit over copies or transfers, in thousandths; None without any
    residual_permille: int | None = None
    objection: str = ""  # reason to keep the value of the device; "" if it is replaced

    @property
    def is_accepted(self) -> bool:
        """Return whether the fitted value replaces that of the device."""
        return self.fitted is not None and not self.objection


@dataclass(frozen=True)
class Calibration:
    """Operator durations and device parameters from a profile."""

    device: Device  # device with the new figures, and the profile as their source
    measurements: tuple[Measurement, ...]  # durations of operators, in descending order of total time
    figures: tuple[FigureFit, ...]  # all figures that a profile can determine
    links: Mapping[str, LinkFit]  # name of the figure -> successful fit of one direction
    unmeasured_ns: tuple[tuple[str, int], ...]  # (kernel, total) of kernels without measurement, descending
    num_kernels: int  # runs of compute kernels in the profile
    kernels_ns: int  # their total time
    num_covered: int  # runs that `measurements` cover
    covered_ns: int  # their total time
    notes: tuple[str, ...]  # caveats

    @property
    def changes(self) -> tuple[FigureFit, ...]:
        """The device parameters that are replaced."""
        return tuple(figure for figure in self.figures if figure.is_accepted)


def calibrate(profile: Profile, device: Device) -> Calibration:
    """Compute operator durations and link parameters from a profile; other device parameters are unchanged.

    Args:
        profile: profile of one or more ranks.
        device: device whose parameters are used where the profile has none.
    """
    kernels = [kernel for kernel in profile.kernels if ComputeUnit.NETWORK not in kernel.units]
    measurements = measure(kernels)
    links = _links(profile, device)
    figures = (*_link_figures(profile, device, links), *_shares(profile, device))
    accepted = [figure for figure in figures if figure.is_accepted]
    source = f"measured, {profile.num_ranks} rank{'s' * (profile.num_ranks > 1)} of a profile"
    new_device = with_figures(
        device,
        {figure.name: figure.fitted for figure in accepted if figure.fitted is not None},
        {figure.name: f"{source}, {figure.num_samples} samples" for figure in accepted},
    )
    covered = [kernel for kernel in kernels if can_measure(kernel)]
    unmeasured_ns: Counter[str] = Counter()
    for kernel in kernels:
        unmeasured_ns[kernel.type] += 0 if can_measure(kernel) else kernel.duration_ns
    return Calibration(
        device=new_device,
        measurements=measurements,
        figures=figures,
        links={name: fit for name, fit in links.items() if fit is not None},
        unmeasured_ns=tuple((name, time_ns) for name, time_ns in unmeasured_ns.most_common() if time_ns),
        num_kernels=len(kernels),
        kernels_ns=sum(kernel.duration_ns for kernel in kernels),
        num_covered=len(covered),
        covered_ns=sum(kernel.duration_ns for kernel in covered),
        notes=(*profile.notes, *_notes(profile, kernels, device)),
    )


def _links(profile: Profile, device: Device) -> dict[str, LinkFit | None]:
    """Fit both directions; None if times do not grow with sizes, because no link is faster than device memory."""
    fits = {"d2h": fit_link(profile.copies, True), "h2d": fit_link(profile.copies, False)}
    limit = device.memory_bandwidth_bytes_per_s
    return {name: fit if fit and fit.bandwidth_bytes_per_s <= limit else None for name, fit in fits.items()}


def _link_figures(profile: Profile, device: Device, fits: Mapping[str, LinkFit | None]) -> Iterable[FigureFit]:
    values = figure_values(device)
    for name, is_out in (("d2h", True), ("h2d", False)):
        fit, latency = fits[name], f"{name}_latency"
        if fit is None:
            count = sum(copy.is_out is is_out for copy in profile.copies)
            why = _why_no_link(profile, count)
            yield from (FigureFit(key, values[key], num_samples=count, objection=why) for key in (name, latency))
            continue
        objection = ""
        if fit.num_large < MIN_SAMPLES:
            large = f"too few copies of {format_bytes(LARGE_BYTES)} or more ({fit.num_large})"
            objection = f"{large}; {MIN_SAMPLES} are needed"
        for key, fitted in ((name, fit.bandwidth_bytes_per_s), (latency, fit.latency_ns)):
            yield FigureFit(key, values[key], fitted, fit.num_copies, fit.middle_error_permille, objection)
    permille, count = fit_contention(profile.copies, fits["d2h"], fits["h2d"]) or (None, 0)
    why = "" if count else "fewer than three copies overlapped with copies in the other direction"
    yield FigureFit("contended_fraction", values["contended_fraction"], permille, count, objection=why)


def _why_no_link(profile: Profile, count: int) -> str:
    if count:
        return f"{count} copies, of which fewer than three ran alone, or whose times do not grow with their sizes"
    return "copies have no size below Level2" if profile.num_unsized_copies else "no copies in this direction"


def _shares(profile: Profile, device: Device) -> Iterable[FigureFit]:
    """Shares that collectives reach on the links within a node (HCCS) and between nodes (RDMA)."""
    values = figure_values(device)
    num_links = max(1, device.intranode.num_mesh_cards - 1)
    for name, link, bandwidth in (
        ("collective_fraction", "HCCS", device.intranode.bandwidth_bytes_per_s // num_links),
        ("internode_fraction", "RDMA", device.internode.bandwidth_bytes_per_s),
    ):
        fit = fit_share(profile.transfers, link, bandwidth, device.op_latency_ns["communication"])
        if fit is None:
            why = f"no large {link} transfers in communication.json that did not wait"
            yield FigureFit(name, values[name], objection=why)
            continue
        permille, num_transfers, _ = fit
        objection = ""
        if num_transfers < MIN_SAMPLES:
            objection = f"too few collectives ({num_transfers}); {MIN_SAMPLES} are needed"
        elif permille > 1000:
            objection = f"links are faster than those of {device.title}: is this its profile?"
        yield FigureFit(name, values[name], *fit, objection)


def _notes(profile: Profile, kernels: Sequence[ProfiledKernel], device: Device) -> Iterable[str]:
    if profile.num_unsized_copies:
        level = f" ({profile.level})" if profile.level else ""
        yield (
            f"{profile.num_unsized_copies} copies without a size{level}: only profiler level 2 writes sizes, "
            "so the links to the host keep their figures"
        )
    computing = sum(step.computing_ns for step in profile.steps)
    kernels_ns = sum(kernel.duration_ns for kernel in kernels)
    if computing and not FEWEST_PERMILLE <= kernels_ns * 1000 // computing <= MOST_PERMILLE:
        yield (
            f"kernels take {kernels_ns * 100 // computing} % of the computing time in step_trace_time.csv: "
            "is a part of one of them missing?"
        )
    # Matrix kernels are split over all cores of a card; there are cards of the same name with 20, 24 and 25.
    blocks = [kernel.num_blocks for kernel in kernels if can_measure(kernel) and is_matrix_kernel(kernel)]
    max_blocks, num_cores = max(blocks, default=0), device.num_matrix_cores
    if num_cores and len(blocks) >= MIN_SAMPLES and max_blocks and max_blocks != num_cores:
        cores = f"matrix kernels run on {max_blocks} cores, {device.title} has {num_cores}"
        yield f"{cores}: is --device the card of this profile?"
