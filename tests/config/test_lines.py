from mindswap.config.edit import after_line, line_above, line_end, line_start, newline_at

TEXT = "a\r\nbc\rd\n\ne"  # lines begin at 0, 3, 6, 8, 9


def test_a_line_of_any_line_end():
    assert [line_start(TEXT, index) for index in (0, 1, 3, 4, 6, 9, 10)] == [0, 0, 3, 3, 6, 9, 9]
    assert [line_end(TEXT, index) for index in (0, 3, 6, 8, 9)] == [1, 5, 7, 8, 10]
    assert [after_line(TEXT, index) for index in (0, 4, 6, 8, 9)] == [3, 6, 8, 9, 10]


def test_the_line_above():
    assert [line_above(TEXT, start) for start in (3, 6, 8, 9)] == [0, 3, 6, 8]


def test_the_last_line_ends_like_the_one_above():
    assert [newline_at(TEXT, index) for index in (0, 3, 6)] == ["\r\n", "\r", "\n"]
    assert newline_at("a\r\nb", 3) == "\r\n"
    assert newline_at("a", 0) == "\n"
