"""Differences between versions of MindFormers, for the installed one; 1.9 stands for the graph mode of 2.x, too."""

from mindswap.check.doctor.software import installed_version

_VERSION = installed_version("mindformers")

if _VERSION.startswith(("1.6.", "1.7.")):
    from mindformers.tools.utils import set_output_path as set_output_path
else:
    from mindformers.utils.file_utils import set_output_path as set_output_path


def builds_form(is_legacy: bool) -> bool:
    """Whether this process builds models of this form: the first context decides between legacy and newer ones."""
    if _VERSION.startswith("1.6."):
        return True  # no context remembers it
    from mindformers.core.context.build_context import is_legacy_model

    return is_legacy_model() == is_legacy
