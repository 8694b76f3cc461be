"""Whatever mindswap raises on purpose is a `MindswapError`: one `except` is enough for those who call it."""

import importlib
import inspect
import pkgutil

import pytest

import mindswap
from mindswap.errors import MindswapError, require

# A signal between two functions of the package, which does not get out.
SIGNALS = {"UnsolvedError", "Stop"}
BUGS = {"BoundError"}  # of ours: exit code 3


def exceptions_of_the_package() -> set[type[Exception]]:
    """Exceptions that its modules define; those of `adapters` need MindSpore."""
    names = [module.name for module in pkgutil.walk_packages(mindswap.__path__, "mindswap.")]
    importable = [name for name in names if "adapters" not in name and not name.endswith("__main__")]
    modules = [importlib.import_module(name) for name in importable]
    members = [member for module in modules for member in vars(module).values() if inspect.isclass(member)]
    return {member for member in members if issubclass(member, Exception) and member.__module__.startswith("mindswap")}


@pytest.mark.long
def test_every_error_of_the_package_has_the_one_base():
    exceptions = exceptions_of_the_package()
    assert len(exceptions) > 10
    strays = {error.__name__ for error in exceptions if not issubclass(error, MindswapError)}
    assert {name for name in strays if not name.startswith("_")} == SIGNALS | BUGS


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
