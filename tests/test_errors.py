"""Whatever mindswap raises on purpose is a `MindswapError`: one `except` is enough for those who call it."""

import ast
from pathlib import Path

import pytest

from mindswap.errors import MindswapError, require

PACKAGE = Path(__file__).parents[1] / "mindswap"
# A signal between two functions of the package, which does not get out.
SIGNALS = {"UnsolvedError", "Stop"}


def bases_by_class():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield node.name, [ast.unparse(base) for base in node.bases]


@pytest.mark.long
def test_every_error_of_the_package_has_the_one_base():
    strays = {
        name
        for name, bases in bases_by_class()
        if any(base.endswith("Error") or base.endswith("Exception") for base in bases)
        and "MindswapError" not in bases
        and not name.startswith("_")
    }
    assert strays == {"MindswapError", *SIGNALS}


@pytest.mark.parametrize(
    ("value", "kinds", "message"),
    [
        (None, (str,), "layers: None\n    allowed: str"),
        (True, (int, str), "layers: True\n    allowed: int or str"),
        (object(), (int,), "layers: <class 'object'>\n    allowed: int"),
    ],
)
def test_an_argument_of_another_kind_is_refused(value, kinds, message):
    with pytest.raises(MindswapError) as error:
        require("layers", value, *kinds)
    assert str(error.value) == message
    require("layers", 5, int, str)
