"""Device memory that MindSpore may use (`context.max_device_memory`), buffers of HCCL, and pinned host memory."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from mindswap.config.nodes import Document
from mindswap.config.problem import Location
from mindswap.units import ceil_div

PATH = "context.max_device_memory"
ALLOWED = 'a string such as "58GB"; GB is GiB there'
# `_RE_PATTERN` and `set_max_device_memory` in context.py of mindspore 2.9.0; ascend_memory_adapter.cc takes
# kGBToByte = 1024 << 20 bytes for one.
_SIZE = re.compile(r"(?:[1-9][0-9]*\.?[0-9]*|0\.[0-9]*)GB")
# MindSpore ignores a larger limit on 910B and A3 (`GetDeviceMemSizeFromContext` of ascend_memory_adapter.cc), and its
# pool takes 15/16 of the memory that is free (kMSMemoryRatio).
LARGEST_LIMIT_BYTES = 64 * 2**30
# `HCCL_BUFFSIZE` if it is not set (CANN 8.5).
DEFAULT_HCCL_BUFFER_BYTES = 200 * 2**20
# What CANN offers of a card of 64 GB (910B): aclrtGetMemInfo in out-of-memory errors of torch_npu, for example
# vllm-ascend#19 and TouchNet#100. MindSpore stops if the limit is not below the memory that is free.
CARD_BYTES = int(Decimal("60.96") * 2**30)


def read_hccl_buffer(environ: Mapping[str, str]) -> int | None:
    """Return the size of a buffer of HCCL in bytes, as `HCCL_BUFFSIZE` sets it in MiB; None if it sets none."""
    text = environ.get("HCCL_BUFFSIZE", "").strip()
    return int(text) * 2**20 if text.isdecimal() and int(text) >= 1 else None  # HCCL takes nothing else


def hccl_bytes(buffer_bytes: int, num_communicators: int) -> int:
    """Return the device memory of HCCL in bytes: a buffer to send and one to receive for each communicator."""
    return 2 * buffer_bytes * num_communicators


@dataclass(frozen=True)
class DeviceMemory:
    """A limit of device memory per card in a configuration."""

    size_bytes: int
    location: Location  # location of the key

    @property
    def source(self) -> str:
        """The key and its location, for messages."""
        return f"{PATH}, {self.location}"


def is_device_memory(value: object) -> bool:
    """Return whether MindSpore accepts a value: a positive number of GB without a space."""
    return isinstance(value, str) and _SIZE.fullmatch(value) is not None and Decimal(value[:-2]) > 0


def read_pool_limit(document: Document) -> int:
    """Return the size to which `max_device_memory` lets MindSpore's pool grow, in bytes; 0 if it sets none."""
    limit = read_device_memory(document)
    return limit.size_bytes if limit is not None and limit.size_bytes <= LARGEST_LIMIT_BYTES else 0


def read_pool_block(document: Document) -> int:
    """Return the smallest block that MindSpore's pool takes from the device, in bytes; 0 if the file sets none.

    Source: `SetMemPoolBlockSize` of abstract_ascend_memory_pool_support.cc of mindspore 2.9.0.
    """
    value = document.value("context", "mempool_block_size")
    return int(Decimal(value[:-2]) * 2**30) if is_device_memory(value) else 0


def read_device_memory(document: Document) -> DeviceMemory | None:
    """Read the device memory limit of a configuration; None without a valid one."""
    node = document.get(*PATH.split("."))
    if node is None or not is_device_memory(node.value):
        return None
    return DeviceMemory(int(Decimal(node.value[:-2]) * 2**30), node.location)


# Fraction of the available host memory, in thousandths, that MindSpore pins for swapped tensors; the ranks of a node
# share it evenly (`offload_cpu_size` of offload_context.cc, pin_mem_pool.cc; mindspore 2.9.0).
PINNED_PERMILLE = 800


def pinnable_bytes(host_bytes: int) -> int:
    """Return how much host memory MindSpore can pin for offloaded tensors, in bytes."""
    return host_bytes * PINNED_PERMILLE // 1000


def host_bytes_for(pinned_bytes: int) -> int:
    """Return the host memory that is needed to pin a number of bytes; the inverse of `pinnable_bytes`."""
    return ceil_div(pinned_bytes * 1000, PINNED_PERMILLE)
