"""Switch mindswap on in a training that is started without it: `MINDSWAP=1 python run_mindformer.py --config ...`.

If MINDSWAP is set, Python calls `watch` at its start by `mindswap_switch.pth`, which is installed with the package.
It imports the standard library only. mindswap itself is imported when a script has imported MindFormers: a broken
installation of mindswap stops trainings, and no other Python program.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

VARIABLE = "MINDSWAP"
OFF = ("", "0", "false", "no", "off")
CONFIG = "--config"
LIBRARY = "mindformers"


class LibraryFinder(importlib.abc.MetaPathFinder):
    """Calls a function once, directly after MindFormers has been imported.

    Args:
        start: the function.
    """

    def __init__(self, start: Callable[[], None]):
        self.start = start

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec that the other finders have for MindFormers, with `start` behind its execution."""
        if fullname != LIBRARY:
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((spec for finder in others if (spec := finder.find_spec(fullname, path, target))), None)
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader)
        return spec

    def _extend(self, loader: importlib.abc.Loader) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.start()

        loader.exec_module = exec_module  # type: ignore[method-assign]


def is_on(value: str | None) -> bool:
    """Return whether a value of the variable switches mindswap on."""
    return (value or "").strip().lower() not in OFF


def is_script(word: str) -> bool:
    """Return whether a program may be a training: a script or `-m`, not `-c`, a shell, or a command of a package."""
    return word.endswith(".py") or word == "-m"


def start_mindswap() -> None:
    """Install the plugin in the running script. A script without `--config` is reported and left alone."""
    script = Path(sys.argv[0]).resolve()
    if not is_script(script.name) or _is_mindswap(script):
        return
    if not any(word.partition("=")[0] == CONFIG for word in sys.argv):
        sys.stderr.write(
            f"mindswap: warning: {VARIABLE} is set, but {script.name} has no {CONFIG}: mindswap stays off\n"
        )
        return
    try:
        from mindswap.features.run.switch import switch_on
    except ImportError as error:
        sys.exit(
            f"mindswap: error: {VARIABLE} is set, but mindswap cannot be imported: {error}\n"
            f"    fix:     install mindswap again, or unset {VARIABLE} to train without it"
        )
    switch_on(sys.argv)


def _is_mindswap(script: Path) -> bool:
    """Return whether a script is mindswap itself, as in `python -m mindswap run`, which installs the plugin."""
    spec = find_spec("mindswap")
    folders = spec.submodule_search_locations if spec else None
    return any(script.is_relative_to(Path(folder).resolve()) for folder in folders or ())


def watch() -> None:
    """Wait for the import of MindFormers if the variable is on and this process may be a training."""
    argv = getattr(sys, "argv", None) or [""]
    is_watching = any(isinstance(finder, LibraryFinder) for finder in sys.meta_path)  # Python may read a `.pth` twice
    if is_on(os.environ.get(VARIABLE)) and is_script(argv[0]) and not is_watching:
        sys.meta_path.insert(0, LibraryFinder(start_mindswap))
