"""Costs of operators and copies on the requested device, within the memory limit of the configuration."""

import os
from collections.abc import Mapping, Sequence

from mindswap.config.device_memory import read_device_memory, read_hccl_buffer
from mindswap.config.nodes import Document
from mindswap.errors import PolicyError
from mindswap.simulator.cost.calibration_file import load_measured
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.device_file import DEFAULT_DEVICE, load_device, read_cost_settings
from mindswap.simulator.cost.hardware import FRAGMENTS_PERMILLE, SET_BY_USER, Device, with_figures


def find_costs(
    documents: Sequence[Document], device: str | os.PathLike[str] | None, overrides: Mapping[str, str]
) -> CostTable:
    """Load the costs of a device.

    Args:
        documents: configurations that may name the device in `mindswap:`; earlier ones take precedence.
        device: name or file; None for that of the configurations, or the default.
        overrides: device parameters to replace; they take precedence over those of the configurations.

    Raises:
        PolicyError: if a configuration is invalid.
        CostError: if the device is unknown or its file is invalid.
    """
    requested = [read_cost_settings(document) for document in documents]
    if problems := [problem for settings in requested for problem in settings.problems]:
        raise PolicyError(problems)
    named = (settings.device for settings in requested if settings.device)
    chosen = device if device is not None else next(named, DEFAULT_DEVICE)
    figures: dict[str, str] = {}
    for settings in reversed(requested):
        figures |= settings.overrides
    device_names = within_configuration(load_device(chosen, {**figures, **overrides}), documents[0])
    return CostTable(with_environment(device_names, os.environ), load_measured(chosen))


def within_configuration(device: Device, document: Document) -> Device:
    """Limit the usable memory of a device to that of the configuration, unless the user sets a budget."""
    limit = read_device_memory(document)
    is_named = device.sources["usable_memory"] == SET_BY_USER
    if limit is None or is_named or limit.size_bytes >= device.usable_memory_bytes:
        return device
    return with_figures(device, {"usable_memory": limit.size_bytes}, {"usable_memory": limit.source})


def with_environment(device: Device, environ: Mapping[str, str]) -> Device:
    """Apply environment variables to a device, unless the user sets the parameter.

    `HCCL_BUFFSIZE` sets the size of HCCL buffers (in MiB, from 1); `enable_vmm:False` in `MS_ALLOC_CONF` disables
    virtual memory mapping, so that the pool fragments.
    """
    maps_pages = "enable_vmm:false" not in environ.get("MS_ALLOC_CONF", "").lower().replace(" ", "")
    if not maps_pages and not device.leaves_fragments and device.sources["fragments"] != SET_BY_USER:
        source = "environment, MS_ALLOC_CONF=enable_vmm:False"
        device = with_figures(device, {"fragments": FRAGMENTS_PERMILLE}, {"fragments": source})
    buffer_bytes = read_hccl_buffer(environ)
    if buffer_bytes is None or device.sources["hccl_buffer"] == SET_BY_USER:
        return device
    source = f"environment, HCCL_BUFFSIZE={buffer_bytes // 2**20}"
    return with_figures(device, {"hccl_buffer": buffer_bytes}, {"hccl_buffer": source})


# A device file from a profile of a real machine.
