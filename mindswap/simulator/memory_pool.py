"""MindSpore's memory pool on a device that maps no pages: blocks from the device, buffers by best fit.

Such a pool leaves fragments: free buffers that are too small for the next allocation, in blocks that the device gave.
A replay of the allocations of a step tells how much.

Source:
    `AbstractDynamicMemPool` and `MemBufAllocator` of mindspore 2.9.0 (abstract_dynamic_mem_pool.cc) without virtual
    memory. A replay of the allocations that a dry run records gives its "Actual peak memory usage (with fragments)" to
    the byte.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

# A block that the device gives is one unit, or twice, four times, ... as much where the tensor is larger
# (CalMemBlockAllocSize). Weights, states and accumulated gradients have one block of their own, then they are in the
# blocks of all tensors.
UNIT_BYTES = 2 << 30
PERSISTENT_UNIT_BYTES = 1 << 30
ALIGNMENT_BYTES = 512  # kDynamicMemAlignSize


@dataclass(frozen=True, order=True)
class Buffer:
    """A part of a block; in the order in which the pool looks for a free one: by size, then by address.

    Attributes:
        size_bytes: its size.
        address: its address; blocks of the device have descending addresses.
        block: number of its block.
    """

    size_bytes: int
    address: int
    block: int = field(compare=False)


@dataclass
class _Block:
    """A block that the device gave."""

    size_bytes: int
    address: int
    used_bytes: int = 0  # from its begin up to the highest end of a buffer that was ever used


@dataclass
class _Allocator:
    """Blocks and free buffers of the common or the persistent pool."""

    unit_bytes: int
    has_blocks: bool = False
    free: list[Buffer] = field(default_factory=list)  # ascending


class MemoryPool:
    """The pool of one device; memory is allocated and released in the order of the step."""

    def __init__(self, unit_bytes: int = UNIT_BYTES) -> None:
        """Create an empty pool; `unit_bytes` is the smallest block that it takes from the device."""
        self._blocks: list[_Block] = []
        self._common, self._persistent = _Allocator(unit_bytes), _Allocator(PERSISTENT_UNIT_BYTES)
        self._owner: list[_Allocator] = []  # allocator of each block
        self._free_at: dict[tuple[int, int], Buffer] = {}  # (block, address) -> free buffer that begins there
        self._free_to: dict[tuple[int, int], Buffer] = {}  # (block, address) -> free buffer that ends there

    @property
    def actual_bytes(self) -> int:
        """Peak with fragments as MindSpore reports it: up to where each block was ever used, over all blocks."""
        return sum(block.used_bytes for block in self._blocks)

    @property
    def reserved_bytes(self) -> int:
        """Size of all blocks that the device gave."""
        return sum(block.size_bytes for block in self._blocks)

    def allocate(self, size_bytes: int, *, is_persistent: bool = False) -> Buffer:
        """Allocate memory of a tensor.

        Args:
            size_bytes: its size; rounded up to a multiple of `ALIGNMENT_BYTES`.
            is_persistent: whether it is a weight, an optimizer state or an accumulated gradient, which stays.

        Returns:
            The buffer, for `release`.
        """
        size_bytes = max(-(-size_bytes // ALIGNMENT_BYTES), 1) * ALIGNMENT_BYTES
        first = self._persistent if is_persistent else self._common
        return (
            self._find(first, size_bytes)
            or (self._find(self._common, size_bytes) if is_persistent else None)
            or self._expand(self._common, size_bytes)
        )

    def release(self, buffer: Buffer) -> None:
        """Release a buffer and merge it with free neighbours."""
        begin, size_bytes, number = buffer.address, buffer.size_bytes, buffer.block
        for neighbour in (
            self._free_to.get((number, begin)),
            self._free_at.get((number, begin + size_bytes)),
        ):
            if neighbour is not None:
                self._take(neighbour)
                begin, size_bytes = min(begin, neighbour.address), size_bytes + neighbour.size_bytes
        self._give(Buffer(size_bytes, begin, number))

    def _find(self, allocator: _Allocator, size_bytes: int) -> Buffer | None:
        if not allocator.has_blocks:
            return self._expand(allocator, size_bytes)
        position = bisect_left(allocator.free, size_bytes, key=lambda buffer: buffer.size_bytes)
        return self._split(allocator.free[position], size_bytes) if position < len(allocator.free) else None

    def _expand(self, allocator: _Allocator, size_bytes: int) -> Buffer:
        """Take a block from the device, and a buffer from its begin."""
        block_bytes = allocator.unit_bytes
        while block_bytes < size_bytes:
            block_bytes *= 2
        address = (self._blocks[-1].address if self._blocks else 0) - block_bytes
        self._blocks.append(_Block(block_bytes, address))
        self._owner.append(allocator)
        allocator.has_blocks = True
        block = Buffer(block_bytes, address, len(self._blocks) - 1)
        self._give(block)
        return self._split(block, size_bytes)

    def _split(self, free: Buffer, size_bytes: int) -> Buffer:
        """Use the begin of a free buffer; the rest stays free if it is large enough for a tensor."""
        self._take(free)
        if free.size_bytes - size_bytes >= ALIGNMENT_BYTES:
            self._give(Buffer(free.size_bytes - size_bytes, free.address + size_bytes, free.block))
        else:
            size_bytes = free.size_bytes
        block = self._blocks[free.block]
        block.used_bytes = max(block.used_bytes, free.address - block.address + size_bytes)
        return Buffer(size_bytes, free.address, free.block)

    def _give(self, buffer: Buffer) -> None:
        insort(self._owner[buffer.block].free, buffer)
        self._free_at[buffer.block, buffer.address] = buffer
        self._free_to[buffer.block, buffer.address + buffer.size_bytes] = buffer

    def _take(self, buffer: Buffer) -> None:
        free = self._owner[buffer.block].free
        del free[bisect_left(free, buffer)]
        del self._free_at[buffer.block, buffer.address]
        del self._free_to[buffer.block, buffer.address + buffer.size_bytes]
