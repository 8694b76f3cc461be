"""Tables of a profile in every spelling; foreign and broken ones."""

import csv

import pytest

from mindswap.errors import CostError
from mindswap.simulator.profile.profile import MATRIX, NETWORK, VECTOR, ProfiledKernel, Share
from mindswap.simulator.profile.tables import MAX_DIGITS, read_kernels, read_peak, read_steps, recognise_table
from tests.simulator.cost.builders import tensor
from tests.simulator.cost.profiles import (
    KERNEL_COLUMNS,
    LEVEL0_COLUMNS,
    MEMORY_COLUMNS,
    STEP_COLUMNS,
    SUMMARY_COLUMNS,
    TORCH_COLUMNS,
    kernel,
    on,
    summary,
    write_csv,
)

MATMUL = kernel("MatMulV2", "632.3", "FLOAT16 4096,4096; FLOAT16 4096,4096", "FLOAT16 4096,4096")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table.csv"


def read(path, *rows, columns=KERNEL_COLUMNS):
    write_csv(path, columns, list(rows))
    return list(read_kernels(path))


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (KERNEL_COLUMNS, MATMUL),
        (TORCH_COLUMNS, MATMUL),
        (tuple(reversed(KERNEL_COLUMNS)), MATMUL),
        (SUMMARY_COLUMNS, summary(MATMUL)),
    ],
)
def test_the_same_kernel_in_every_spelling(path, columns, row):
    square = tensor(4096, 4096)
    assert read(path, row, columns=columns) == [ProfiledKernel("MatMulV2", 632_300, (square, square), (square,))]
    assert recognise_table(path) in ("kernels", "summary")


def test_optional_inputs_scalars_and_new_dtype_names(path):
    (row,) = read(path, kernel("Add", "1.5", "DT_BF16 8,4; UNDEFINED ; DT_INT64 2; FLOAT ", "DT_BF16 8,4"))
    assert row.inputs == (tensor(8, 4, dtype="bfloat16"), tensor(2, dtype="int64"))


@pytest.mark.parametrize(
    ("core", "units"),
    [
        ("AI_CORE", MATRIX + VECTOR),
        ("MIX_AIC", MATRIX),
        ("AI_VECTOR_CORE", VECTOR),
        ("MIX_AIV", VECTOR),
        ("HCCL", NETWORK),
        ("COMMUNICATION", NETWORK),
        ("AI_CPU", ()),
        ("DSA_SQE", ()),
        ("N/A", ()),
        ("WHAT_COMES_NEXT", ()),
    ],
)
def test_what_ran_a_kernel(path, core, units):
    assert [row.units for row in read(path, kernel("Cast", "1", "", "", **on(core)))] == [units]


def test_collectives_are_known_by_their_name_as_well(path):
    assert read(path, kernel("hcom_allReduce_", "900", "", ""))[0].units == NETWORK


def test_formats_that_split_the_shape(path):
    rows = [MATMUL | {"Input Formats": text} for text in ("FORMAT_ND;ND", "NCHW", "FRACTAL_NZ;ND", "NC1HWC0")]
    assert [row.is_plain for row in read(path, *rows)] == [True, True, False, False]


def test_kernels_without_readable_types(path):
    rows = [
        kernel("Cast", "3", "FLOAT 4,x", "FLOAT16 4"),
        kernel("Cast", "3", "", "FLOAT16 4"),
        kernel("Cast", "3", "FLOAT 4", "FLOAT16 4", **{"Input Shapes": "4;4"}),
        kernel("Cast", "3", "FLOAT -1,4", "FLOAT16 4"),
        kernel("MemSet", "3", "", "", **{"Input Shapes": "N/A", "Input Data Types": "N/A"}),
    ]
    assert [row.inputs for row in read(path, *rows)] == [None] * 5
    assert read(path, kernel("Cast", "3", "FLOAT16 0,4", "FLOAT16 4"))[0].inputs == (tensor(0, 4),)


def test_a_field_with_the_shapes_of_many_tensors(path):
    # An optimizer over 20,000 tensors: 100,000 characters of shapes and 120,000 of types; csv stops at 131,072.
    many = "; ".join(["FLOAT 1024"] * 30_000)
    assert len(read(path, kernel("ForeachAddList", "3", many, many))[0].inputs) == 30_000
    assert csv.field_size_limit() == 131_072


@pytest.mark.parametrize(
    ("columns", "name", "text", "num_blocks"),
    [
        (KERNEL_COLUMNS, "Block Num", "20", 20),
        (TORCH_COLUMNS, "Block Dim", "24", 24),
        (KERNEL_COLUMNS, "Block Num", "N/A", 0),
        (KERNEL_COLUMNS, "Block Num", "9" * (MAX_DIGITS - 1), 10 ** (MAX_DIGITS - 1) - 1),
        (KERNEL_COLUMNS, "Block Num", "9" * MAX_DIGITS, 0),
    ],
)
def test_cores_that_a_kernel_was_split_over(path, columns, name, text, num_blocks):
    assert read(path, MATMUL | {name: text}, columns=columns)[0].num_blocks == num_blocks


def test_steps(path):
    row = {"Step": "1", "Computing": "900000.5", "Communication(Not Overlapped)": "50000", "Free": "10000"}
    write_csv(path, ("Device_id", *STEP_COLUMNS), [row])
    assert list(read_steps(path)) == [Share(900_000_500, 50_000_000, 10_000_000)]
    assert recognise_table(path) == "steps"


def test_the_peak_is_that_of_the_pool(path):
    rows = [
        {"Component": name, "Total Allocated(MB)": used}
        for name, used in (("PTA", "100.5"), ("PTA", "3"), ("PTA+GE", "120"), ("APP", "999"))
    ]
    write_csv(path, MEMORY_COLUMNS, rows)
    assert read_peak(path) == int(100.5 * 2**20)
    write_csv(path, MEMORY_COLUMNS, rows[2:])
    assert read_peak(path) is None


def test_level_0_has_no_shapes(path):
    with pytest.raises(CostError, match=r"table\.csv: no columns Input Shapes, .*\n.*Level2"):
        read(path, {"Type": "N/A", "Duration(us)": "1"}, columns=LEVEL0_COLUMNS)
    assert recognise_table(path) == "kernels"


def test_the_longest_duration(path):
    assert read(path, MATMUL | {"Duration(us)": "9" * 18})[0].duration_ns == 10**21 - 1000


@pytest.mark.parametrize("duration", ["fast", "", "-1", "nan", "inf", "1e400", "1" + "0" * 18])
def test_a_broken_duration_has_its_line(path, duration):
    with pytest.raises(CostError, match=r"table.csv:3: '.*' is no time or size"):
        read(path, MATMUL, MATMUL | {"Duration(us)": duration})


@pytest.mark.parametrize(
    "content", [b"", b"a,b\n1,2\n", b"\xff\xfe\x00", b'"Type","Duration(us)\n', b"x" * 2**20, b"\x00" * 100]
)
def test_foreign_tables(path, content):
    path.write_bytes(content)
    with pytest.raises(CostError, match=r"table.csv: "):
        list(read_kernels(path))
    assert recognise_table(path) is None


def test_a_line_that_ends_too_early(path):
    write_csv(path, KERNEL_COLUMNS, [MATMUL])
    path.write_text(path.read_text() + "4294967295,12,3,Default/Cast\n")
    with pytest.raises(CostError, match=r"table\.csv:3: '' is no time or size"):
        list(read_kernels(path))


def test_of_an_unknown_table_the_columns_of_the_framework_s_profiler_are_missed(path):
    path.write_text("a,b\n1,2\n")
    with pytest.raises(CostError, match=r"Type, Duration\(us\)") as caught:
        list(read_kernels(path))
    assert "OP Type" not in str(caught.value)


def test_of_a_long_value_40_characters_are_shown(path):
    with pytest.raises(CostError) as caught:
        read(path, MATMUL | {"Duration(us)": "abcdefghij" * 9})
    assert f": {'abcdefghij' * 4!r} is no time or size" in str(caught.value)
