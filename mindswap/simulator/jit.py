"""How the loops of the simulator are compiled."""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import FunctionCache

Compiled = TypeVar("Compiled", bound=Callable[..., Any])

# None of the loops allocates, so the arrays that they get need not be counted; counting them at every call of
# a small function would be most of the time. `_nrt=False` also makes an allocation an error of the compiler.
OPTIONS: dict[str, Any] = {"_nrt": False, "forceinline": True}


class _Kept(FunctionCache):
    """Machine code on disk, made anew where it cannot be read.

    An earlier version of mindswap leaves its own beside the package, where pip does not remove it; it names classes
    that may be gone, and numba reads that before it asks how old it is.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 reading a pickle may raise anything
            self.flush()  # type: ignore[no-untyped-call]
            return None


def compiled(function: Compiled) -> Compiled:
    """The function, compiled at its first call; the machine code is kept on disk where that is possible.

    Numba keeps it beside the package or, where that is read-only, below the user's home. On a machine where
    neither can be written it raises instead of doing without.
    """
    dispatcher = numba.njit(**OPTIONS)(function)
    with contextlib.suppress(RuntimeError):
        dispatcher._cache = _Kept(function)  # type: ignore[no-untyped-call]
    return cast(Compiled, dispatcher)
