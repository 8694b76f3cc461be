import json

import pytest

from mindswap.runtime.attempt.checkpoints import (
    Checkpoint,
    CheckpointFolder,
    SavedStep,
    link_checkpoint,
    read_saved_step,
)
from tests.runtime.attempt.stub_training import save


def put(folder, rank, name, step):
    path = folder / f"rank_{rank}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, step)
    return path


@pytest.fixture
def folder(tmp_path):
    """Steps 4 and 8 of two ranks; after a restart at 4 MindFormers calls step 8 again `1_4`."""
    for rank in (0, 1):
        put(tmp_path, rank, f"x_rank_{rank}-1_4.safetensors", 4)
        put(tmp_path, rank, f"x_rank_{rank}_1-1_4.safetensors", 8)
    return tmp_path


def test_the_step_is_that_in_the_file_not_that_in_the_name(folder):
    newest = CheckpointFolder(folder, 2).newest()
    assert newest.saved == SavedStep(8, 1)
    assert [path.name for path in newest.files] == ["x_rank_0_1-1_4.safetensors", "x_rank_1_1-1_4.safetensors"]


def test_a_half_written_file_does_not_count_and_later_does(folder):
    path = put(folder, 0, "x_rank_0-1_12.safetensors", 12)
    put(folder, 1, "x_rank_1-1_12.safetensors", 12)
    whole = path.read_bytes()
    checkpoints = CheckpointFolder(folder, 2)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert checkpoints.newest().saved.step == 8
    path.write_bytes(whole)
    assert checkpoints.newest().saved.step == 12


def test_a_step_that_one_rank_lacks_does_not_count(folder):
    put(folder, 0, "x_rank_0-1_12.safetensors", 12)
    assert CheckpointFolder(folder, 2).newest().saved.step == 8
    assert CheckpointFolder(folder, 3).newest() is None


def test_what_meta_json_does_not_know_is_still_being_written(folder):
    for rank in (0, 1):
        put(folder, rank, f"x_rank_{rank}-1_12.safetensors", 12)
    (folder / "rank_1/meta.json").write_text(json.dumps({"last_ckpt_file": "x_rank_1-1_4.safetensors"}))
    assert CheckpointFolder(folder, 2).newest().saved.step == 4
    (folder / "rank_1/meta.json").write_text("{")
    assert CheckpointFolder(folder, 2).newest().saved.step == 12


def test_marked_files_do_not_count_until_they_change(folder):
    marks = CheckpointFolder(folder, 2).marks()
    assert CheckpointFolder(folder, 2, marks).newest() is None
    for rank in (0, 1):
        path = folder / f"rank_{rank}/x_rank_{rank}-1_4.safetensors"
        path.unlink()
        save(path, 40)
    assert CheckpointFolder(folder, 2, marks).newest().saved.step == 40


def test_no_folder_is_no_checkpoint(tmp_path):
    assert CheckpointFolder(tmp_path / "no", 2).newest() is None


def test_links_survive_the_files(folder, tmp_path):
    newest = CheckpointFolder(folder, 2).newest()
    target = tmp_path / "resume"
    assert link_checkpoint(newest, target, is_parallel=True) == "x_rank_0-1_8.safetensors"
    for path in newest.files:
        path.unlink()
    assert read_saved_step(target / "rank_1/x_rank_1-1_8.safetensors") == SavedStep(8, 1)


def test_one_process_takes_safetensors_in_a_folder_without_ranks(folder, tmp_path):
    newest = CheckpointFolder(folder, 1).newest()
    target = tmp_path / "resume"
    assert link_checkpoint(newest, target, is_parallel=False) is True
    assert [path.name for path in target.iterdir()] == ["hyper_param.safetensors"]
    assert read_saved_step(target / "hyper_param.safetensors") == newest.saved


def test_one_process_takes_ckpt_by_name(tmp_path):
    file = tmp_path / "x_rank_0-1_8.ckpt"
    file.write_bytes(b"x")
    checkpoint = Checkpoint(SavedStep(8, 1), (file,), "x", "ckpt")
    assert link_checkpoint(checkpoint, tmp_path / "resume", is_parallel=False) == file.name
    assert (tmp_path / "resume/rank_0" / file.name).read_bytes() == b"x"


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x08\0\0\0\0\0\0\0[1,2,3] ", b"\x02\0\0\0\0\0\0\0{}"])
@pytest.mark.parametrize("suffix", [".safetensors", ".ckpt", ".txt"])
def test_what_is_no_checkpoint(tmp_path, content, suffix):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content)
    assert read_saved_step(path) is None


def field(number, content):
    """A field of protobuf: a number, or bytes with their length."""

    def varint(value):
        return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)

    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def ckpt(**tensors):
    """As MindSpore writes it: tensors with dimensions, a type, and their bytes, then a field that nobody reads."""
    tensor = {name: field(1, 1) + field(2, b"Int64") + field(3, content) for name, content in tensors.items()}
    return b"".join(field(1, field(1, name.encode()) + field(2, tensor[name] + field(4, b"zz"))) for name in tensor)


def test_a_ckpt_by_hand(tmp_path):
    """Tensors of 127, 128, 200 and 20000 bytes, 15 of them beside the values; numbers of 8 and of 4 bytes."""
    path = tmp_path / "x.ckpt"
    numbers = {"epoch_num": (2).to_bytes(8, "little"), "step_num": (300).to_bytes(4, "little")}
    whole = ckpt(t=b"x" * 112, u=b"x" * 113, w=b"x" * 185, **numbers, v=b"y" * 19_985)
    path.write_bytes(whole)
    assert read_saved_step(path) == SavedStep(step=300, epoch=2)
    for size in (*range(100), 200, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert read_saved_step(path) is None
    path.write_bytes(ckpt(epoch_num=numbers["epoch_num"]))
    assert read_saved_step(path) is None
    path.write_bytes(field(2, b"x") + whole)
    assert read_saved_step(path) is None


def test_a_step_of_four_bytes_between_others(tmp_path):
    offsets = {"step_num": [0, 4], "epoch_num": [4, 12], "w": [12, 16]}
    header = json.dumps({name: {"data_offsets": each} for name, each in offsets.items()}).encode()
    data = (300).to_bytes(4, "little") + (2).to_bytes(8, "little") + b"wwww"
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    assert read_saved_step(path) == SavedStep(step=300, epoch=2)


@pytest.mark.mindspore
@pytest.mark.parametrize("kind", ["ckpt", "safetensors"])
def test_files_of_mindspore(tmp_path, kind):
    import mindspore as ms
    import numpy as np

    path = tmp_path / f"x.{kind}"
    weight = ms.Parameter(ms.Tensor(np.ones((30, 20), np.float32)), name="w")
    ms.save_checkpoint(
        [{"name": "w", "data": weight}], str(path), append_dict={"epoch_num": 2, "step_num": 300}, format=kind
    )
    assert read_saved_step(path) == SavedStep(step=300, epoch=2)
    whole = path.read_bytes()
    cut = tmp_path / f"cut.{kind}"
    for size in range(0, len(whole) - 1, 7):
        cut.write_bytes(whole[:size])
        assert read_saved_step(cut) is None


def test_no_rank_has_no_checkpoint(folder):
    assert CheckpointFolder(folder, 0).newest() is None
