"""MindFormers 1.7: the folder for output is set elsewhere."""

from mindformers.core.context.build_context import is_legacy_model
from mindformers.tools.utils import set_output_path

__all__ = ["builds_form", "set_output_path"]


def builds_form(is_legacy: bool) -> bool:
    """As in later versions."""
    return is_legacy_model() == is_legacy
