"""What a configuration lets MindSpore take of a card: `context.max_device_memory`."""

import re
from dataclasses import dataclass
from decimal import Decimal

from mindswap.config.nodes import Document
from mindswap.config.problem import Location

PATH = "context.max_device_memory"
ALLOWED = 'a string such as "58GB"; GB is GiB there'
# `_RE_PATTERN` and `set_max_device_memory` in context.py of mindspore 2.9.0; ascend_memory_adapter.cc takes
# kGBToByte = 1024 << 20 bytes for one.
_SIZE = re.compile(r"(?:[1-9][0-9]*\.?[0-9]*|0\.[0-9]*)GB")


@dataclass(frozen=True)
class DeviceMemory:
    """What MindSpore may take of each card."""

    size_bytes: int  # how much
    location: Location  # where that stands

    @property
    def source(self) -> str:
        """In words."""
        return f"{PATH}, {self.location}"


def is_device_memory(value: object) -> bool:
    """Whether MindSpore takes a value; no unit but GB, no blank, not 0."""
    return isinstance(value, str) and _SIZE.fullmatch(value) is not None and Decimal(value[:-2]) > 0


def read_device_memory(document: Document) -> DeviceMemory | None:
    """The limit of a configuration; None if it has none, or none that MindSpore takes."""
    node = document.get(*PATH.split("."))
    if node is None or not is_device_memory(node.value):
        return None
    return DeviceMemory(int(Decimal(node.value[:-2]) * 2**30), node.location)
