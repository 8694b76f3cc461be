from mindswap.config.problem import Level
from tests.builders import check, found

TEXT = "{model: {model_config: {num_layers: %s}}, swap_config: {swap: True}}"


def test_a_number_that_is_none():
    unknown = "num_layers: the number of layers of the model"
    known = (("'32'", "num_layers: 32"), ("4.0", "num_layers: 4"))
    for value, fix in (*known, ("0", unknown), ("True", unknown), ("[4]", unknown)):
        (problem,) = check(TEXT % value, None).problems
        assert (problem.rule, problem.location.column, problem.fix) == ("number-of-layers", 37, fix)
        assert problem.allowed == "an integer, 1 to 10000"


def test_a_number_and_none_at_all_are_good():
    assert found(TEXT % "32", None) == []
    assert found("{model: {model_config: {hidden_size: 4}}, swap_config: {swap: True}}", None) == []
    assert (
        found("{model: {model_config: {num_layers: null, num_hidden_layers: 2}}, swap_config: {swap: True}}", None)
        == []
    )


def test_with_swap_off_it_is_a_warning():
    (problem,) = check(TEXT.replace("True}", "False}") % "0", None).problems
    assert problem.level is Level.WARNING
