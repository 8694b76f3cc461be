"""Make a device file from a profile of a real machine: `mindswap calibrate`."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindswap.features.calibrate.report import calibration_header, calibration_json, format_calibration
from mindswap.files import refuse_existing, write_new
from mindswap.simulator.cost.calibration_file import format_device_file
from mindswap.simulator.cost.device_file import DEFAULT_DEVICE, load_device
from mindswap.simulator.profile.calibration import calibrate
from mindswap.simulator.profile.files import load_profile
from mindswap.simulator.profile.tables import Progress


@dataclass(frozen=True)
class Calibrated:
    """Result of a calibration; `str()` returns the report."""

    text: str
    data: Mapping[str, Any]
    is_written: bool  # whether a file was written; not if the profile has no figure of the device

    def __str__(self) -> str:
        return self.text


def calibrate_device(
    profile_path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    device: str = DEFAULT_DEVICE,
    overwrite: bool = False,
    show_progress: Callable[[int], Progress] | None = None,
) -> Calibrated:
    """Fit the figures of operators, copies and links to a profile, and write a device file.

    Args:
        profile_path: folder or file of the profiler.
        output: file to write.
        device: name or file of a device for the figures that the profile does not have.
        overwrite: replace an existing file.
        show_progress: function that takes the total number of bytes, and returns a function that is called with the
            bytes read.

    Returns:
        The calibration.

    Raises:
        CostError: if profile or device cannot be read.
        DataError: if the file already exists, or cannot be written.
    """
    if not overwrite:
        refuse_existing([Path(output)])
    base_device = load_device(device)
    profile = load_profile(Path(profile_path), show_progress)
    calibration = calibrate(profile, base_device)
    is_written = bool(calibration.measurements or calibration.changes)
    if is_written:
        header = calibration_header(profile, base_device.name)
        device_file = format_device_file(
            calibration.device, header, calibration.measurements, "Made by mindswap calibrate."
        )
        write_new(output, device_file, overwrite=overwrite)
    data = calibration_json(profile, calibration, str(output) if is_written else None)
    return Calibrated(format_calibration(profile, calibration, base_device.title), data, is_written)
