"""MindFormers 1.8 and later, also the graph mode of 2.x."""

from mindformers.core.context.build_context import is_legacy_model
from mindformers.utils.file_utils import set_output_path

__all__ = ["builds_form", "set_output_path"]


def builds_form(is_legacy: bool) -> bool:
    """Whether this process builds models of this form: the first context decides between legacy and newer ones."""
    return is_legacy_model() == is_legacy
