"""The module of the installed MindFormers."""

from mindswap.adapters.installed import installed_version

_VERSION = installed_version("mindformers")

if _VERSION.startswith("1.6."):
    from mindswap.adapters.versions.mindformers_1_6 import builds_form, set_output_path
elif _VERSION.startswith("1.7."):
    from mindswap.adapters.versions.mindformers_1_7 import builds_form, set_output_path
else:
    from mindswap.adapters.versions.mindformers_1_9 import builds_form, set_output_path

__all__ = ["builds_form", "set_output_path"]
