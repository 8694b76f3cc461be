"""Finding profiles: folders of ranks, of both profilers and of msprof; files by what they hold; what is no profile."""

import pytest

from mindswap.errors import CostError
from mindswap.simulator.profile import tables as profile_tables
from mindswap.simulator.profile.files import AS_WRITTEN, MAX_DEPTH, find_profiles, load_profile
from mindswap.simulator.profile.profile import Share
from tests.simulator.cost.profiles import (
    BLOCK_COLUMNS,
    MEMORY_COLUMNS,
    STEP_COLUMNS,
    SUMMARY_COLUMNS,
    TORCH_COLUMNS,
    collective,
    copy,
    kernel,
    summary,
    write_csv,
    write_json,
    write_profile,
    write_trace,
)

MATMUL = kernel("MatMulV2", "632.3", "FLOAT16 4096,4096; FLOAT16 4096,4096", "FLOAT16 4096,4096")
STEP = {"Step": "1", "Computing": "900000.5", "Communication(Not Overlapped)": "50000", "Free": "10000"}


def folders(path):
    return [rank.folder for rank in find_profiles(path)]


def test_the_folder_of_a_rank_or_the_files_will_do(tmp_path):
    output = write_profile(tmp_path, [MATMUL])
    assert folders(tmp_path) == folders(output.parent) == folders(output) == [output]


def test_two_folders_of_a_rank_are_one_rank_and_the_table_with_shapes_counts(tmp_path):
    output = tmp_path / "run" / "ASCEND_PROFILER_OUTPUT"
    write_profile(tmp_path, [MATMUL]).rename(tmp_path / "moved")
    output.parent.mkdir()
    (tmp_path / "moved").rename(output)
    write_csv(output.parent / "op_summary_20260101.csv", SUMMARY_COLUMNS, [summary(MATMUL)])
    assert folders(tmp_path) == [output]
    assert load_profile(tmp_path).folder == str(output)


def test_profiles_are_looked_for_to_a_depth(tmp_path):
    root = tmp_path / "root"
    folder = root.joinpath(*"x" * MAX_DEPTH)
    write_csv(folder / "mine.csv", SUMMARY_COLUMNS, [summary(MATMUL)])
    assert folders(root) == [folder]
    with pytest.raises(CostError, match="below it"):
        find_profiles(tmp_path)


def test_only_tables_and_json_are_files_of_a_profile(tmp_path):
    output = write_profile(tmp_path, [MATMUL])
    write_trace(output / "trace_view.txt", [copy(0, 5, 64)])
    (output / "folder.csv").mkdir()
    assert load_profile(tmp_path).copies == ()


def test_every_error_says_once_what_to_do(tmp_path, monkeypatch):
    output = write_profile(tmp_path, [MATMUL | {"Duration(us)": "long"}])
    with pytest.raises(CostError) as caught:
        load_profile(tmp_path)
    assert str(caught.value).endswith(f"\n    fix:     {AS_WRITTEN}") and str(caught.value).count("fix:") == 1
    write_profile(tmp_path, [MATMUL])
    monkeypatch.setattr(profile_tables, "MAX_BYTES", 1)
    write_json(output / "communication.json", {"step1": {"collective": {"hcom_x@1": collective(1, HCCS=(2, 1))}}})
    with pytest.raises(CostError) as caught:
        load_profile(tmp_path)
    assert str(caught.value).endswith("\n    fix:     profile fewer steps") and str(caught.value).count("fix:") == 1


def test_a_table_alone_will_do(tmp_path):
    write_csv(tmp_path / "mine.csv", SUMMARY_COLUMNS, [summary(MATMUL)])
    assert [found.type for found in load_profile(tmp_path / "mine.csv").kernels] == ["MatMulV2"]


def test_all_ranks_are_read_as_one(tmp_path):
    # Peaks of 1 and 2 MiB: the larger counts. Steps of both. Copies keep their rank.
    for number in (0, 1):
        output = write_profile(
            tmp_path, [MATMUL], [copy(0, 5, 64)], [STEP], rank=f"rank{number}_ascend_pt", columns=TORCH_COLUMNS
        )
        row = {"Component": "PTA", "Total Allocated(MB)": str(1 + number)}
        write_csv(output / "memory_record.csv", MEMORY_COLUMNS, [row])
    profile = load_profile(tmp_path)
    assert (profile.num_ranks, len(profile.kernels), profile.peak_memory_bytes) == (2, 2, 2 * 2**20)
    assert profile.steps == (Share(900_000_500, 50_000_000, 10_000_000),) * 2
    assert profile.steps[0].total_ns == 960_000_500
    assert [found.rank for found in profile.copies] == [0, 1]
    assert profile.folder == str(tmp_path)


def test_output_of_msprof_in_slices(tmp_path):
    output = tmp_path / "PROF_000001_20260101" / "mindstudio_profiler_output"
    for number in (0, 1):
        write_csv(output / f"op_summary_slice_{number}_20260101.csv", SUMMARY_COLUMNS, [summary(MATMUL)])
        write_trace(output / f"msprof_slice_{number}_20260101.json", [copy(number, 5, 64)])
    write_csv(output / "api_statistic_20260101.csv", ("Device_id", "Level", "API Name", "Time(us)"), [])
    profile = load_profile(tmp_path)
    assert (profile.num_ranks, len(profile.kernels), len(profile.copies)) == (1, 2, 2)


def test_what_msprof_left_beside_the_profile_of_a_rank_does_not_count_again(tmp_path):
    output = write_profile(tmp_path, [MATMUL], rank="rank0_ascend_pt")
    raw = output.parent / "PROF_000001_20260101" / "mindstudio_profiler_output"
    write_csv(raw / "op_summary_20260101.csv", SUMMARY_COLUMNS, [summary(MATMUL)] * 5)
    assert folders(tmp_path) == [output]


def test_files_are_known_by_what_they_hold(tmp_path):
    output = write_profile(tmp_path, [MATMUL])
    (output / "kernel_details.csv").rename(output / "a.csv")
    write_trace(output / "b.json", [copy(0, 5, 64)])
    write_csv(output / "c.csv", STEP_COLUMNS, [STEP])
    write_json(output / "d.json", {"step1": {"p2p": {}, "collective": {"hcom_x@1": collective(1, HCCS=(2, 1))}}})
    write_json(output / "e.json", {"step1": {"collective": {"hcom_x@1": {"0-1": {"Transport Type": "HCCS"}}}}})
    write_json(output / "f.json", {"experimental_config": {"_profiler_level": "Level2"}})
    profile = load_profile(tmp_path)
    assert (len(profile.kernels), len(profile.copies), len(profile.steps), len(profile.transfers)) == (1, 1, 1, 1)
    assert profile.level == "Level2"


@pytest.mark.parametrize("text", ['{"a": {"profiler_level": "Level1"}}', '{"_profiler_level": "ProfilerLevel.Level1"}'])
def test_the_level_stands_beside_the_folder(tmp_path, text):
    output = write_profile(tmp_path, [MATMUL])
    (output.parent / "profiler_info_0.json").write_text(text)
    assert load_profile(tmp_path).level == "Level1"


def test_the_memory_tracker_knows_the_peak_best(tmp_path):
    output = write_profile(tmp_path, [MATMUL], [])
    write_csv(output / "memory_record.csv", MEMORY_COLUMNS, [{"Component": "MindSpore", "Total Allocated(MB)": "1"}])
    assert load_profile(tmp_path).peak_memory_bytes == 2**20
    rows = [{"size": "512", "actual_peak_memory": peak} for peak in ("1024", "4096")]
    write_csv(output.parent / "memory_block.csv", (*BLOCK_COLUMNS, ""), rows)
    assert load_profile(tmp_path).peak_memory_bytes == 4096


def test_progress_is_told_the_bytes_of_traces_and_kernels(tmp_path):
    output = write_profile(tmp_path, [MATMUL], [copy(0, 5, 64)])
    totals, told = [], []

    def begin(total):
        totals.append(total)
        return told.append

    load_profile(tmp_path, begin)
    # Line ends of CSV are two characters.
    size = sum((output / name).stat().st_size for name in ("trace_view.json", "kernel_details.csv"))
    assert (totals, sum(told)) == ([size], size)


def test_without_a_trace_there_is_a_note(tmp_path):
    write_profile(tmp_path, [MATMUL])
    write_profile(tmp_path, [MATMUL], [copy(0, 5, 64)], rank="rank1_ascend_ms")  # one of two has one
    assert load_profile(tmp_path).notes == ("no trace_view.json: the links to the host keep their figures",)


def test_a_folder_without_a_profile(tmp_path):
    with pytest.raises(CostError, match=r"no kernel_details.csv or op_summary_\*.csv below it\n    fix: "):
        load_profile(tmp_path)
    with pytest.raises(CostError, match="no such folder"):
        load_profile(tmp_path / "none")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(CostError, match="is not a known file of a profiler"):
        load_profile(tmp_path / "notes.txt")


def test_a_profile_that_was_not_analysed(tmp_path):
    (tmp_path / "rank0_ascend_pt" / "PROF_000001_20260101" / "device_0" / "data").mkdir(parents=True)
    with pytest.raises(CostError, match="not analysed yet"):
        load_profile(tmp_path)


@pytest.mark.parametrize("name", ["ascend_mindspore_profiler_0.db", "ascend_pytorch_profiler_0.db", "msprof_0.db"])
def test_a_profile_that_was_exported_as_a_database(tmp_path, name):
    output = tmp_path / "rank0_ascend_ms" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (tmp_path / "rank0_ascend_ms" / "PROF_000001_20260101").mkdir()
    (output / name).write_bytes(b"SQLite format 3")
    with pytest.raises(CostError, match=r"exported as a database(.|\n)*export_type=\[ExportType.Text\]"):
        load_profile(tmp_path)


def test_a_profile_of_an_old_mindspore(tmp_path):
    (tmp_path / "profiler").mkdir()
    (tmp_path / "profiler" / "aicore_intermediate_0_detail.csv").write_text("full_op_time,execution_time\n")
    with pytest.raises(CostError, match=r"before 2\.4 and has no shapes"):
        load_profile(tmp_path)
