from mindswap.graph.names import Names


def test_several_names_are_one_text_for_people():
    assert f"keep {Names(('wq.cast', 'wk.cast'))}" == "keep wq.cast|wk.cast"
    assert str(Names.of("add")) == "add"


def test_an_attribute_is_one_path_or_several():
    """A text is one name, whatever stands in it."""
    assert Names.of("a|b") == ("a|b",)
    assert Names.of(("a", "b")) == ("a", "b")
