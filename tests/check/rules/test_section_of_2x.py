from tests.builders import check, found


def test_a_section_of_2x_is_an_error_and_names_the_conversion():
    text = "trainer: {type: x}\nswap: {enable: True, layer_swap: [{layers: [0]}]}"
    assert found(text) == [(2, 1, "section-of-2x")]
    assert check(text).problems[0].fix == "mindswap convert --to 1.9 x.yaml"


def test_each_of_the_three_sections():
    text = "recompute: {mode: full}\nrecompute_comm: {enable: True}\nswap: {enable: True}"
    assert [problem.level.value for problem in check(text).problems] == ["error"] * 3


def test_one_that_is_off_is_a_warning():
    assert [p.level.value for p in check("swap: {enable: False}\nrecompute: {mode: None}").problems] == ["warning"] * 2


def test_other_things_with_these_names_are_left_alone():
    assert found("swap: 3\nrecompute: {a: 1}") == []
