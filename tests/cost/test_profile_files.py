"""Reading profiles in the real format; foreign and broken files."""

import pytest

from mindswap.cost.profile_files import Copy, Kernel, find_profile, load_profile
from mindswap.errors import CostError
from tests.cost.builders import tensor
from tests.cost.profiles import BLOCK_COLUMNS, MEMORY_COLUMNS, copy, kernel, write_csv, write_profile

MATMUL = kernel("MatMulV2", "632.3", "FLOAT16 4096,4096; FLOAT16 4096,4096", "FLOAT16 4096,4096")


def test_kernels(tmp_path):
    write_profile(tmp_path, [MATMUL])
    square = tensor(4096, 4096)
    assert load_profile(tmp_path).kernels == (Kernel("MatMulV2", 632_300, (square, square), (square,), False),)


def test_optional_inputs_scalars_and_new_dtype_names(tmp_path):
    write_profile(tmp_path, [kernel("Add", "1.5", "DT_BF16 8,4; UNDEFINED ; DT_INT64 2; FLOAT ", "DT_BF16 8,4")])
    (row,) = load_profile(tmp_path).kernels
    assert row.inputs == (tensor(8, 4, dtype="bfloat16"), tensor(2, dtype="int64"))


def test_collectives_are_no_compute(tmp_path):
    rows = [
        kernel("hcom_allReduce_", "900", "", "", **{"Accelerator Core": "HCCL"}),
        kernel("allgather", "900", "", "", **{"Accelerator Core": "COMMUNICATION"}),
    ]
    write_profile(tmp_path, rows)
    assert [row.is_communication for row in load_profile(tmp_path).kernels] == [True, True]


def test_kernels_without_readable_types(tmp_path):
    rows = [
        kernel("Cast", "3", "FLOAT 4,x", "FLOAT16 4"),
        kernel("Cast", "3", "", "FLOAT16 4"),
        kernel("Cast", "3", "FLOAT 4", "FLOAT16 4", **{"Input Shapes": "4;4"}),
    ]
    write_profile(tmp_path, rows)
    assert [row.inputs for row in load_profile(tmp_path).kernels] == [None, None, None]


def test_copies_in_order_of_start(tmp_path):
    events = [
        copy(2000.5, 1202.5, 16777216, "host to device"),
        copy(1000, 4241.26, 67108864),
        copy(0, 5, 64, "device to device"),
        {"name": "MEMCPY_ASYNC", "ph": "X", "ts": "1", "dur": 1, "args": {"Task Type": "SDMA_SQE"}},
        {"name": "MatMul", "ph": "X", "ts": "1", "dur": 1, "args": {}},
    ]
    write_profile(tmp_path, [MATMUL], events)
    profile = load_profile(tmp_path)
    start = 1717575960 * 10**9
    assert profile.copies == (
        Copy(start + 1_000_000, 4_241_260, 67108864, True),
        Copy(start + 2_000_500, 1_202_500, 16777216, False),
    )
    assert profile.notes == ("trace_view.json: 1 copies without a size were left out",)


def test_without_a_trace_there_is_a_note(tmp_path):
    write_profile(tmp_path, [MATMUL])
    assert load_profile(tmp_path).notes == ("no trace_view.json: the links to the host keep their figures",)


def test_steps_and_peak_memory(tmp_path):
    step = {"Step": "1", "Computing": "900000.5", "Communication(Not Overlapped)": "50000", "Free": "10000"}
    output = write_profile(tmp_path, [MATMUL], [], [step])
    write_csv(
        output / "memory_record.csv",
        MEMORY_COLUMNS,
        [{"Component": name, "Total Allocated(MB)": used} for name, used in (("MindSpore", "100.5"), ("APP", "999"))],
    )
    profile = load_profile(tmp_path)
    assert profile.steps_ns == (960_000_500,)
    assert profile.peak_memory_bytes == int(100.5 * 2**20)


def test_the_memory_tracker_knows_the_peak_best(tmp_path):
    output = write_profile(tmp_path, [MATMUL], [])
    write_csv(output / "memory_record.csv", MEMORY_COLUMNS, [{"Component": "MindSpore", "Total Allocated(MB)": "1"}])
    rows = [{"size": "512", "actual_peak_memory": peak} for peak in ("1024", "4096")]
    write_csv(output.parent / "memory_block.csv", (*BLOCK_COLUMNS, ""), rows)
    assert load_profile(tmp_path).peak_memory_bytes == 4096


def test_the_folder_of_a_rank_or_the_files_will_do(tmp_path):
    output = write_profile(tmp_path, [MATMUL])
    assert find_profile(tmp_path) == find_profile(output.parent) == find_profile(output) == output


def test_several_ranks_have_to_be_told_apart(tmp_path):
    write_profile(tmp_path, [MATMUL], rank="rank_0_ascend_ms")
    write_profile(tmp_path, [MATMUL], rank="rank_1_ascend_ms")
    with pytest.raises(CostError, match="2 ranks; name the folder of one:\n    rank_0_ascend_ms\n    rank_1_ascend_ms"):
        load_profile(tmp_path)


def test_a_folder_without_a_profile(tmp_path):
    with pytest.raises(CostError, match="no ASCEND_PROFILER_OUTPUT/kernel_details.csv below it\n    fix: "):
        load_profile(tmp_path)
    with pytest.raises(CostError, match="no such folder"):
        load_profile(tmp_path / "none")


def test_a_profile_of_an_old_mindspore(tmp_path):
    (tmp_path / "profiler").mkdir()
    (tmp_path / "profiler" / "aicore_intermediate_0_detail.csv").write_text("full_op_time,execution_time\n")
    with pytest.raises(CostError, match="before 2.4 and says nothing about shapes"):
        load_profile(tmp_path)


def test_a_profile_of_level_0_has_no_shapes(tmp_path):
    output = write_profile(tmp_path, [])
    write_csv(output / "kernel_details.csv", ("Name", "Type", "Duration(us)"), [{"Type": "Cast", "Duration(us)": "1"}])
    with pytest.raises(CostError, match="no columns Input Shapes, .*\n.*Level1"):
        load_profile(tmp_path)


@pytest.mark.parametrize("duration", ["fast", "", "-1", "nan", "inf"])
def test_a_broken_duration_has_its_line(tmp_path, duration):
    write_profile(tmp_path, [MATMUL, MATMUL | {"Duration(us)": duration}])
    with pytest.raises(CostError, match=r"kernel_details.csv:3: '.*' is no time or size"):
        load_profile(tmp_path)


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\xff\xfe\x00", b'"Type","Duration(us)\n'])
def test_foreign_tables(tmp_path, content):
    output = write_profile(tmp_path, [])
    (output / "kernel_details.csv").write_bytes(content)
    with pytest.raises(CostError, match="kernel_details.csv: "):
        load_profile(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", "[1]", "null", '{"traceEvents": 3}'])
def test_foreign_traces(tmp_path, content):
    output = write_profile(tmp_path, [MATMUL])
    (output / "trace_view.json").write_text(content)
    with pytest.raises(CostError, match="trace_view.json: is no trace of the profiler"):
        load_profile(tmp_path)
