"""Whether MindSpore and MindFormers are there, and of which version, without importing them."""

import importlib.util
import os
from importlib.metadata import PackageNotFoundError, version

from mindswap.adapters.pairs import describe_pair, is_known_pair
from mindswap.errors import LaunchError

__all__ = ["ANY_VERSION", "installed_version", "require_mindformers"]

# Set to 1: versions that were never tried together are tried all the same.
ANY_VERSION = "MINDSWAP_ANY_VERSION"


def installed_version(name: str) -> str:
    """Version of a distribution; "" if it is not installed as one."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def require_mindformers() -> None:
    """Say what to install if one of them is missing, or if nobody knows whether they go together.

    Raises:
        LaunchError: naming what is not there, or what to install.
    """
    missing = [name for name in ("mindspore", "mindformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise LaunchError(
            f"not installed: {', '.join(missing)}\n    fix: pip install mindspore==2.9.0 mindformers==1.9.0 (on "
            "Ascend, install the MindSpore that matches your CANN, then mindformers==1.9.0)"
        )
    mindformers, mindspore = installed_version("mindformers"), installed_version("mindspore")
    is_unknown = not mindformers or not mindspore  # a checkout on the path says nothing of its version
    if is_unknown or is_known_pair(mindformers, mindspore) or os.environ.get(ANY_VERSION) == "1":
        return
    raise LaunchError(
        f"mindformers {mindformers} with mindspore {mindspore}: mindswap was never tried with this pair\n"
        f"    fix: {describe_pair(mindformers)}; {ANY_VERSION}=1 tries it all the same"
    )
