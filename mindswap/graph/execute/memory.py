"""Device memory that is really taken, given back and poisoned. Pure but for numpy."""

import numpy as np

# NaN in every floating point type, -1 or the largest number in every integer type.
POISON = 0xFF


class ExecutedMemory:
    """Pieces of memory by name; each is one array, which views of it share.

    What is given back is filled with poison and stays readable: whoever still reads it computes with poison, as with
    memory that has another owner by then.
    """

    def __init__(self, alignment_bytes: int = 1) -> None:
        """Every piece takes a multiple of `alignment_bytes`, as in MindSpore's pool."""
        self.alignment_bytes = alignment_bytes
        self.live_bytes = 0
        self._arrays: dict[str, np.ndarray] = {}
        self._live: set[str] = set()

    def take(self, name: str, array: np.ndarray) -> None:
        """Memory with this content; the array becomes the memory's own."""
        if name in self._live:
            raise ValueError(f"{name} is taken already")
        self._arrays[name] = array
        self._live.add(name)
        self.live_bytes += self._taken_bytes(array)

    def give_back(self, name: str, poison: bool = True) -> None:
        """Not taken any more. What was never taken is ignored: its owner has not come yet."""
        if name not in self._live:
            return
        self._live.remove(name)
        array = self._arrays[name]
        self.live_bytes -= self._taken_bytes(array)
        if poison and array.size:
            array.reshape(-1).view(np.uint8)[:] = POISON

    def is_live(self, name: str) -> bool:
        """Whether the memory has what its owner put there."""
        return name in self._live

    def read(self, name: str) -> np.ndarray | None:
        """The content, poison if it was given back; None if it was never taken."""
        return self._arrays.get(name)

    def _taken_bytes(self, array: np.ndarray) -> int:
        return -(-array.nbytes // self.alignment_bytes) * self.alignment_bytes
