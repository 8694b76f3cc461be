"""How the loops of the simulator are compiled."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Compiled = TypeVar("Compiled", bound=Callable[..., Any])

# None of the loops allocates, so the arrays that they get need not be counted; counting them at every call of
# a small function would be most of the time. `_nrt=False` also makes an allocation an error of the compiler.
OPTIONS: dict[str, Any] = {"_nrt": False, "forceinline": True}


def compiled(function: Compiled) -> Compiled:
    """The function, compiled at its first call; the machine code is kept on disk where that is possible.

    Numba keeps it beside the package or, where that is read-only, below the user's home. On a machine where
    neither can be written it raises instead of doing without.
    """
    try:
        return cast(Compiled, numba.njit(cache=True, **OPTIONS)(function))
    except RuntimeError:
        return cast(Compiled, numba.njit(**OPTIONS)(function))
