from mindswap.report.tables import format_table, group_equal


def test_columns_are_as_wide_as_their_widest_cell():
    assert format_table(["name", "n"], [["a", "10"], ["longer", "7"]]) == (
        "name     n\n"
        "------  --\n"
        "a       10\n"
        "longer   7"
    )  # fmt: skip


def test_equal_layers_are_one_in_order_of_the_first():
    assert group_equal("abab", str, range(4)) == [([0, 2], "a"), ([1, 3], "b")]
    assert group_equal("aA", str.lower, [4, 5]) == [([4, 5], "a")]
