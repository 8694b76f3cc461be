"""A profile and a device -> the device with measured figures, and how well they explain the profile."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mindswap.simulator.cost.explained import Explained, explain
from mindswap.simulator.cost.fit import LARGE_BYTES, MIN_COPIES, LinkFit, fit_contention, fit_link, fit_share
from mindswap.simulator.cost.hardware import Device, figure_values, with_figures
from mindswap.simulator.cost.kernel_fit import MIN_KERNELS, FigureFit, fit_kernels
from mindswap.simulator.cost.kernel_samples import can_measure, is_matrix_kernel, measure, samples_of
from mindswap.simulator.cost.profile import Engine, Profile, ProfiledKernel
from mindswap.simulator.cost.table import Measurement
from mindswap.units import format_bytes

# Kernels and the step times are from the same run: their sums agree but for what ran beside each other.
FEWEST_PERMILLE, MOST_PERMILLE = 800, 1200


@dataclass(frozen=True)
class Calibration:
    """What came out of a profile."""

    device: Device  # with the new figures, and the profile as their source
    measurements: tuple[Measurement, ...]  # durations of operators, the largest sum first
    figures: tuple[FigureFit, ...]  # every figure that a profile can show, with what this one does
    links: Mapping[str, LinkFit]  # the fits of both directions, by figure; only those that could be fitted
    explained: Explained  # how the new figures explain the kernels
    num_kernels: int  # runs of compute kernels in the profile
    kernels_ns: int  # their time
    num_covered: int  # those that `measurements` have
    covered_ns: int
    notes: tuple[str, ...]  # what could not be done, and why

    @property
    def changes(self) -> tuple[FigureFit, ...]:
        """The figures that are replaced."""
        return tuple(figure for figure in self.figures if figure.is_accepted)


def calibrate(profile: Profile, device: Device) -> Calibration:
    """Replace the figures of a device by those that a profile shows; what it does not show stays."""
    kernels = [kernel for kernel in profile.kernels if kernel.engine is not Engine.COMMUNICATION]
    measurements = measure(kernels)
    samples = samples_of(measurements)
    links = _links(profile, device)
    figures = (*fit_kernels(samples, device), *_link_figures(profile, device, links), *_shares(profile, device))
    accepted = [figure for figure in figures if figure.is_accepted]
    source = f"measured, {profile.num_ranks} rank{'s' * (profile.num_ranks > 1)} of a profile"
    new_device = with_figures(
        device,
        {figure.name: figure.fitted for figure in accepted if figure.fitted is not None},
        {figure.name: f"{source}, {figure.num_samples} samples" for figure in accepted},
    )
    covered = [kernel for kernel in kernels if can_measure(kernel)]
    return Calibration(
        device=new_device,
        measurements=measurements,
        figures=figures,
        links={name: fit for name, fit in links.items() if fit is not None},
        explained=explain(kernels, samples, new_device),
        num_kernels=len(kernels),
        kernels_ns=sum(kernel.duration_ns for kernel in kernels),
        num_covered=len(covered),
        covered_ns=sum(kernel.duration_ns for kernel in covered),
        notes=(*profile.notes, *_notes(profile), *_doubts(kernels, device)),
    )


def _links(profile: Profile, device: Device) -> dict[str, LinkFit | None]:
    """Fits of both directions; None where times do not grow with sizes: no link is faster than device memory."""
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
        if fit.num_large < MIN_COPIES:
            large = f"too few copies of {format_bytes(LARGE_BYTES)} or more ({fit.num_large})"
            objection = f"{large}; {MIN_COPIES} are needed"
        for key, fitted in ((name, fit.bandwidth_bytes_per_s), (latency, fit.latency_ns)):
            yield FigureFit(key, values[key], fitted, fit.num_copies, fit.middle_error_permille, objection)
    before = values["contended_fraction"]
    contention = fit_contention(profile.copies, fits["d2h"], fits["h2d"])
    if contention is None:
        why = "fewer than three copies ran beside the other direction"
        yield FigureFit("contended_fraction", before, objection=why)
    else:
        yield FigureFit("contended_fraction", before, *contention)


def _why_no_link(profile: Profile, count: int) -> str:
    if count:
        return f"{count} copies, of which fewer than three ran alone, or whose times do not grow with their sizes"
    return "copies have no size below Level2" if profile.num_unsized_copies else "no copies in this direction"


def _shares(profile: Profile, device: Device) -> Iterable[FigureFit]:
    """What collectives reach on the links within a node (HCCS) and between nodes (RDMA)."""
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
        objection = ""
        if fit.num_transfers < MIN_COPIES:
            objection = f"too few collectives ({fit.num_transfers}); {MIN_COPIES} are needed"
        elif fit.permille > 1000:
            objection = f"links are faster than those of {device.title}: is this its profile?"
        yield FigureFit(name, values[name], fit.permille, fit.num_transfers, fit.middle_error_permille, objection)


def _doubts(kernels: Iterable[ProfiledKernel], device: Device) -> Iterable[str]:
    """Matrix kernels are split over all cores of a card; there are cards of the same name with 20, 24 and 25."""
    blocks = [kernel.num_blocks for kernel in kernels if can_measure(kernel) and is_matrix_kernel(kernel)]
    most, num_cores = max(blocks, default=0), device.num_matrix_cores
    if num_cores and len(blocks) >= MIN_KERNELS and most and most != num_cores:
        cores = f"matrix kernels run on {most} cores, {device.title} has {num_cores}"
        yield f"{cores}: is --device the card of this profile?"


def _notes(profile: Profile) -> Iterable[str]:
    if profile.num_unsized_copies:
        level = f" ({profile.level})" if profile.level else ""
        yield (
            f"{profile.num_unsized_copies} copies without a size{level}: only profiler level 2 writes sizes, "
            "so the links to the host keep their figures"
        )
    computing = sum(step.computing_ns for step in profile.steps)
    kernels = sum(kernel.duration_ns for kernel in profile.kernels if kernel.engine is not Engine.COMMUNICATION)
    if computing and not FEWEST_PERMILLE <= kernels * 1000 // computing <= MOST_PERMILLE:
        yield (
            f"kernels take {kernels * 100 // computing} % of the computing time in step_trace_time.csv: "
            "is a part of one of them missing?"
        )
