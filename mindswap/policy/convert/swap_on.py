"""What else has to change in a configuration in which swap gets enabled."""

from mindswap.config.nodes import Document, show
from mindswap.config.render import document_from_data
from mindswap.config.sections import rewrite_section
from mindswap.config.step import is_pynative

LEVEL_KEY = "memory_optimize_level"


def rewrite_for_swap(text: str, own: Document, whole: Document) -> str:
    """The text of a file with `context.memory_optimize_level` as swap needs it, and a comment that says so.

    The file says itself what is in `own`; `whole` has what it is based on, too.
    """
    node = whole.get("context", LEVEL_KEY)
    if not _is_in_the_way(whole) or node is None:
        return text
    context = own.data().get("context") or {}
    if not isinstance(context, dict):
        return text
    comment = f"swap needs {LEVEL_KEY} O0; it was {show(node)}"
    return rewrite_section(text, "context", {**context, LEVEL_KEY: "O0"}, comment, own.file)


def with_swap_enabled(document: Document) -> Document:
    """The configuration with nothing but swap enabled, values at their places: to see whether a plan can be written."""
    data = document.data()
    changed = {**data, "swap_config": {"swap": True, "op_swap": []}, "recompute_config": {}}
    if _is_in_the_way(document):
        changed["context"] = {**data["context"], LEVEL_KEY: "O0"}
    return document_from_data(changed, document.file, document)


def _is_in_the_way(document: Document) -> bool:
    node = document.get("context", LEVEL_KEY)
    return node is not None and not node.is_null and node.value != "O0" and not is_pynative(document)
