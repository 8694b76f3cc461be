"""Whether MindSpore and MindFormers are there, without importing them."""

import importlib.util

from mindswap.errors import LaunchError

__all__ = ["require_mindformers"]


def require_mindformers() -> None:
    """Say what to install if one of them is missing.

    Raises:
        LaunchError: naming what is not there.
    """
    missing = [name for name in ("mindspore", "mindformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise LaunchError(
            f"not installed: {', '.join(missing)}\n    fix: pip install 'mindswap[cpu]' (on Ascend, install the "
            "MindSpore that matches your CANN, then mindformers==1.9.0)"
        )
