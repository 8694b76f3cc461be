"""MindFormers 1.6: as 1.7, and every model decides for itself which form it is."""

from mindformers.tools.utils import set_output_path

__all__ = ["builds_form", "set_output_path"]


def builds_form(is_legacy: bool) -> bool:
    """Any: no context remembers it."""
    return True
