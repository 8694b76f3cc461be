"""Compiled loops work where nothing can be kept on disk."""

from mindswap.simulate.jit import compiled


def test_a_function_without_a_file_is_compiled_all_the_same():
    # Numba finds no place to keep code whose source is in no file, and raises if asked to keep it.
    names = {}
    exec(compile("def double(number):\n    return 2 * number\n", "<nowhere>", "exec"), names)
    double = compiled(names["double"])
    assert double(21) == 42
    assert double.signatures  # compiled, not interpreted
