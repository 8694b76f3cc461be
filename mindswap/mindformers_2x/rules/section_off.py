"""A section says something that has no effect, since it is switched off. Upstream looks only at names of keys then.

PASS:
    swap: {enable: False}

FAIL:
    swap: {enable: False, layer_swap: [{layers: [0]}]}
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context

ID = "pynative-section-off"
LEVEL = Level.WARNING

MEANING = {
    "swap": ("layer_swap", "op_swap"),
    "recompute": ("full_recompute_layer", "select_module"),
    "recompute_comm": ("select_module",),
}


def check(context: Context) -> Iterator[Problem]:
    """The first such key of each section; `exclude_op` has a rule of its own."""
    settings = context.settings
    is_off = {"swap": not settings.is_swap_enabled, "recompute": settings.mode == "None"}
    is_off["recompute_comm"] = not settings.is_comm_enabled
    for name, keys in MEANING.items():
        section = context.document.get(name)
        said = [section.entry(key) for key in keys] if section is not None and is_off[name] else []
        found = next((entry for entry in said if entry is not None and not entry.value.is_null), None)
        if found is not None:
            switch = "mode is None" if name == "recompute" else "enable is not True"
            message = f"{name}.{found.key}: has no effect, because {switch}"
            fix = "set mode: full or select" if name == "recompute" else "enable: True"
            yield Problem(found.location, ID, LEVEL, message, fix=f"{fix}, or delete it")
