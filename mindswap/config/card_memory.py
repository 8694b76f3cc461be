"""Memory of the card that a configuration names, for checks that need no other figure of it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from mindswap.config.device_memory import CARD_BYTES, DEFAULT_HCCL_BUFFER_BYTES, read_hccl_buffer
from mindswap.config.nodes import Document, DocumentNode
from mindswap.config.parse import parse_file
from mindswap.errors import MindswapError
from mindswap.files import DATA
from mindswap.units import parse_bytes

GIB = 2**30
# Limit of MindFormers, and of its configurations for cards of 64 GB.
DEFAULT_LIMIT_BYTES = 58 * GIB
# Devices that are no cards: CANN offers no memory of them.
NO_CARDS = ("cpu", "generic")
# Units of sizes in the keys of device files (`device_memory_gib`).
_UNIT_BYTES = {"gib": GIB, "mib": 2**20, "kib": 2**10, "gb": 10**9, "mb": 10**6, "kb": 10**3, "b": 1}


@dataclass(frozen=True)
class CardMemory:
    """Memory of a card as its device file has it."""

    description: str  # the card, for messages
    size_bytes: int  # what CANN offers of it
    limit_bytes: int  # largest `max_device_memory` that configurations for it set
    is_assumed: bool = False  # no source has the size


DEFAULT_CARD = CardMemory("a card of 64 GB", CARD_BYTES, DEFAULT_LIMIT_BYTES)


def read_card_memory(document: Document) -> CardMemory | None:
    """Return the memory of the card that `mindswap.device` names; a card of 64 GB if it names none.

    None for a device that is no card, and for a device file that cannot be read or lacks the figures; the commands that
    use the file report that.
    """
    section = document.get("mindswap")
    entries = (section.get("calibration"), section.get("device")) if section is not None and section.entries else ()
    node = next((entry for entry in entries if entry is not None and isinstance(entry.value, str)), None)
    if node is None:
        return DEFAULT_CARD
    name = str(node.value)
    if name in NO_CARDS:
        return None
    try:
        return _read_device_file(name, Path(node.location.file).parent)
    except (OSError, ArithmeticError, ValueError, MindswapError):
        return None


def _read_device_file(name: str, folder: Path) -> CardMemory | None:
    """Return the memory of the card of a device file: one of the package, or one next to the configuration."""
    shipped = DATA / "hardware" / f"{name}.yaml"
    path = shipped if shipped.is_file() else folder / name
    if not path.is_file():
        return None
    device = parse_file(os.fspath(path))
    size, limit = _find_size(device, "device_memory"), _find_size(device, "usable_memory")
    if size is None or limit is None:
        return None
    return CardMemory(path.stem, size[0], limit[0], size[1].startswith("assumed"))


def read_hccl_buffer_of(document: Document, environ: Mapping[str, str]) -> int:
    """Return the bytes of a buffer of HCCL: `mindswap.hccl_buffer`, else `HCCL_BUFFSIZE`, else CANN's default."""
    node = document.get("mindswap", "hccl_buffer")
    try:
        return parse_bytes(str(node.value)) if node is not None and not node.is_null else _of_environment(environ)
    except ValueError:  # reported with the figures of the device
        return _of_environment(environ)


def _of_environment(environ: Mapping[str, str]) -> int:
    return read_hccl_buffer(environ) or DEFAULT_HCCL_BUFFER_BYTES


def _find_size(device: Document, figure: str) -> tuple[int, str] | None:
    """Return a size of a device file in bytes, and its source; None if the file lacks it."""
    for unit, unit_bytes in _UNIT_BYTES.items():
        node = device.get(f"{figure}_{unit}")
        if node is not None:
            value, source = node.get("value") or node, node.get("source")
            return _to_bytes(value, unit_bytes), str(source.value) if source is not None else ""
    return None


def _to_bytes(node: DocumentNode, unit_bytes: int) -> int:
    return int(Decimal(str(node.value)) * unit_bytes)
