from mindswap.graph.memory import Names


def test_several_names_are_one_text_for_people():
    assert f"keep {Names(('wq.cast', 'wk.cast'))}" == "keep wq.cast|wk.cast"
    assert str(Names.of("add")) == "add"


def test_a_path_is_one_name_whatever_stands_in_it():
    assert Names.of("a|b") == ("a|b",)
