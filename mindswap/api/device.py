"""Cost of operators and copies of a step: the device that is asked for, within what the configuration allows."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindswap.config.nodes import Document
from mindswap.config.step import read_device_memory
from mindswap.errors import PolicyError
from mindswap.files import refuse_existing, write_new
from mindswap.report.calibration import calibration_header, calibration_json, format_calibration
from mindswap.simulator.cost.calibrate import calibrate
from mindswap.simulator.cost.calibration_file import format_device_file, load_measured
from mindswap.simulator.cost.device_file import DEFAULT_DEVICE, load_device, read_cost_settings
from mindswap.simulator.cost.hardware import FRAGMENTS_PERMILLE, SET_BY_USER, Device, with_figures
from mindswap.simulator.cost.profile_files import load_profile
from mindswap.simulator.cost.profile_tables import Progress
from mindswap.simulator.cost.table import CostTable


def find_costs(
    documents: Sequence[Document], device: str | os.PathLike[str] | None, overrides: Mapping[str, str]
) -> CostTable:
    """The costs on a device.

    Args:
        documents: configurations that may name it in `mindswap:`; the first overrides the others.
        device: name or file; None for what they say.
        overrides: figures to replace; they go before those of the configurations.

    Raises:
        PolicyError: if a configuration is wrong.
        CostError: if the device is not known.
    """
    asked = [read_cost_settings(document) for document in documents]
    if problems := [problem for settings in asked for problem in settings.problems]:
        raise PolicyError(problems)
    named = (settings.device for settings in asked if settings.device)
    chosen = device if device is not None else next(named, DEFAULT_DEVICE)
    figures: dict[str, str] = {}
    for settings in reversed(asked):
        figures |= settings.overrides
    known = within_configuration(load_device(chosen, {**figures, **overrides}), documents[0])
    return CostTable(with_environment(known, os.environ), load_measured(chosen))


def within_configuration(device: Device, document: Document) -> Device:
    """The device with no more memory than the configuration lets MindSpore take, unless a budget is named."""
    limit = read_device_memory(document)
    is_named = device.sources["usable_memory"] == SET_BY_USER
    if limit is None or is_named or limit.size_bytes >= device.usable_memory_bytes:
        return device
    return with_figures(device, {"usable_memory": limit.size_bytes}, {"usable_memory": limit.source})


def with_environment(device: Device, environ: Mapping[str, str]) -> Device:
    """The device with what the environment sets, unless a figure is named.

    Buffers of HCCL as `HCCL_BUFFSIZE` asks for (in MiB, from 1); fragments where `MS_ALLOC_CONF` takes the pool its
    pages (`enable_vmm:False`).
    """
    maps_pages = "enable_vmm:false" not in environ.get("MS_ALLOC_CONF", "").lower().replace(" ", "")
    if not maps_pages and not device.leaves_fragments and device.sources["fragments"] != SET_BY_USER:
        source = "environment, MS_ALLOC_CONF=enable_vmm:False"
        device = with_figures(device, {"fragments": FRAGMENTS_PERMILLE}, {"fragments": source})
    text = environ.get("HCCL_BUFFSIZE", "").strip()
    is_named = device.sources["hccl_buffer"] == SET_BY_USER
    if is_named or not text.isdecimal() or int(text) < 1:  # HCCL takes nothing else
        return device
    source = f"environment, HCCL_BUFFSIZE={text}"
    return with_figures(device, {"hccl_buffer": int(text) * 2**20}, {"hccl_buffer": source})


# A device file from a profile of a real machine.


@dataclass(frozen=True)
class Calibrated:
    """Findings in a profile; `print` shows them."""

    text: str
    data: Mapping[str, Any]
    is_written: bool  # it shows some figure of the device; else no file was written

    def __str__(self) -> str:
        return self.text


def calibrate_device(
    profile_path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    device: str = DEFAULT_DEVICE,
    overwrite: bool = False,
    show_progress: Callable[[int], Progress] | None = None,
) -> Calibrated:
    """Read a profile, and write what it shows of operators, copies and links as a device file.

    Args:
        profile_path: what the profiler wrote.
        output: file to write.
        device: name or file with the figures that the profile does not show.
        overwrite: replace a file that is there.
        show_progress: given the bytes there are, gives what is called with the bytes that were read.

    Raises:
        CostError: profile or device cannot be read.
        DataError: the file already exists, or cannot be written.
    """
    if not overwrite:
        refuse_existing([Path(output)])
    known = load_device(device)
    profile = load_profile(Path(profile_path), show_progress)
    found = calibrate(profile, known)
    is_written = bool(found.measurements or found.changes)
    if is_written:
        header = calibration_header(profile, known.name)
        made = format_device_file(found.device, header, found.measurements, "Made by mindswap calibrate.")
        write_new(output, made, overwrite=overwrite)
    data = calibration_json(profile, found, str(output) if is_written else None)
    return Calibrated(format_calibration(profile, found, known.title), data, is_written)
