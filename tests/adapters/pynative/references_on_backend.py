"""Main program of a child process: which references to memory are found on the Ascend backend, in a dry run.

python -m tests.adapters.pynative.references_on_backend REQUEST.json RESULT.json
"""

import gc
import sys

import mindspore as ms

from mindswap.adapters.pynative.copies import StreamCopies
from mindswap.adapters.pynative.references import MemoryReferences
from mindswap.adapters.pynative.saved_tensors import SavedTensor
from mindswap.adapters.pynative.trainer_dry_run import answer_request

MIB = 1 << 20
HOLDS = {
    "tensor": lambda t: t,
    "view": lambda t: t.reshape(-1),
    "slice": lambda t: t[2:],
    "transposed": lambda t: ms.mint.transpose(t, 0, 1),
    "storage": lambda t: t.untyped_storage(),
    "by set_": lambda t: ms.mint.empty((0,), dtype=t.dtype).set_(t.untyped_storage(), 0, (1024, 1024), (1024, 1)),
    "array": lambda t: t.asnumpy(),  # a copy: it does not reach device memory
}


def allocated() -> int:
    ms.runtime.synchronize()
    return ms.runtime.memory_allocated()


def look() -> dict[str, list[object]]:
    """Return for each way: found while held, found after, MiB freed by dropping what was saved while held and after."""
    ms.set_device("Ascend")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    copies = StreamCopies()
    answers = {}
    for name, hold in HOLDS.items():
        references = MemoryReferences()
        tensor = ms.mint.ones((1024, 1024)) * 2
        saved = SavedTensor(tensor.data)
        size = saved.storage.size()
        copy = copies.offload(saved.storage, size)
        held = hold(tensor)
        del tensor
        memory = {0: (saved.storage.data_ptr(), size)}
        own = {id(saved.tensor), id(saved.storage)}
        found = [bool(references.find_referenced(memory, own))]
        del held
        gc.collect()
        found.append(bool(references.find_referenced(memory, own)))
        before = allocated()
        copies.release(copy)
        saved.drop()
        freed = round((before - allocated()) / MIB)  # the pool pads blocks by 512 bytes
        answers[name] = [*found, freed]
    return answers


if __name__ == "__main__":
    sys.exit(answer_request(look, sys.argv[1:]))
