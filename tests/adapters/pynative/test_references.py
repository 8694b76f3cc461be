"""Whatever Python object reaches the memory of a tensor is found, and nothing else."""

import gc

import pytest

pytestmark = pytest.mark.mindspore

HOLDS = {
    "tensor": lambda t: t,
    "view": lambda t: t.reshape(-1),
    "slice": lambda t: t[2:],
    "view of a view": lambda t: t.reshape(-1)[3:7],
    "same tensor": lambda t: t.data,
    "storage": lambda t: t.untyped_storage(),
    "array": lambda t: t.asnumpy(),
    "slice of an array": lambda t: t.asnumpy()[1:],
    "in a closure": lambda t: lambda: t,
    "by set_": lambda t: empty_like(t).set_(t.untyped_storage(), 0, (4, 4), (4, 1)),
    "by dlpack": lambda t: __import__("mindspore").utils.dlpack.from_dlpack(t.to_dlpack()),
}


def empty_like(tensor):
    return __import__("mindspore").mint.empty((0,), dtype=tensor.dtype)


@pytest.fixture(scope="module")
def parts():
    import mindspore as ms

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    from mindswap.adapters.pynative.references import MemoryReferences
    from mindswap.adapters.pynative.saved_tensors import SavedTensor

    def saved():
        tensor = ms.mint.ones((4, 4)) * 2
        return SavedTensor(tensor.data), tensor  # autograd saves another Python object, too

    return MemoryReferences, saved


def is_referenced(references, saved) -> bool:
    memory = saved.storage.data_ptr(), saved.storage.size()
    return references.find_referenced({0: memory}, {id(saved.tensor), id(saved.storage)}) == {0}


@pytest.mark.parametrize("collects", [False, True], ids=["young", "after collections"])
@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)
def test_what_reaches_the_memory_is_found_until_it_is_dropped(parts, hold, collects):
    new_references, new_saved = parts
    references = new_references()
    saved, tensor = new_saved()
    held = hold(tensor)
    saved.tensor, tensor = (
        saved.tensor.reshape(4, 4),
        None,
    )  # a view of its own: only `held` reaches the memory otherwise
    if collects:
        gc.collect()
    assert is_referenced(references, saved)
    del held
    gc.collect()
    assert not is_referenced(references, saved)


def test_a_tensor_from_before_the_pass_that_is_given_the_memory_is_found(parts):
    new_references, new_saved = parts
    cache = empty_like(new_saved()[1])
    gc.collect()
    references = new_references()
    saved = new_saved()[0]
    assert not is_referenced(references, saved)
    cache.set_(saved.storage, 0, (4, 4), (4, 1))
    assert is_referenced(references, saved)


def test_nothing_is_let_go_of_after_objects_were_frozen(parts):
    """The collector does not list them; the next pass lists what there is."""
    new_references, new_saved = parts
    references = new_references()
    saved = new_saved()[0]
    gc.freeze()
    try:
        assert is_referenced(references, saved)
    finally:
        gc.unfreeze()
    references.begin()
    assert not is_referenced(references, saved)


def test_looking_keeps_nothing_alive(parts):
    """A list of the collector that contains itself would keep every object in it."""
    import weakref

    new_references, new_saved = parts
    references = new_references()
    saved, tensor = new_saved()
    gc.collect()
    gc.disable()
    try:
        is_referenced(references, saved)
        reference = weakref.ref(tensor)
        saved.drop()
        del tensor
        assert reference() is None
    finally:
        gc.enable()
