"""Changes of a configuration by key path, with a line for each."""

from typing import Any

from mindswap.config.render import inline_text, is_inline


class ConfigEdit:
    """Editable configuration that records its changes."""

    def __init__(self, data: dict[str, Any]):
        self.data = data
        self.changes: list[str] = []

    def get(self, path: str) -> Any:
        """Return the value at a key path; None if it is missing."""
        node: Any = self.data
        for name in path.split("."):
            node = node.get(name) if isinstance(node, dict) else None
        return node

    def set(self, path: str, value: Any, only_existing: bool = False) -> None:
        """Set the value at a key path and create missing sections, unless `only_existing`."""
        *parents, last = path.split(".")
        node = self.data
        for name in parents:
            if not isinstance(node.get(name), dict):
                if only_existing:
                    return
                node[name] = {}
            node = node[name]
        if last not in node and only_existing:
            return
        old = node.get(last)
        node[last] = value
        if old != value and (old or value):
            self.changes.append(f"{path}: {show_value(old)} -> {show_value(value)}")


def show_value(value: Any) -> str:
    """Format a value of the configuration for a line about a change, abbreviated."""
    if value is None:
        return "not set"
    if is_inline(value):
        text = inline_text(value)
    else:
        text = ", ".join(str(item.get("type", "...") if isinstance(item, dict) else item) for item in value)
    return text if len(text) <= 60 else text[:57] + "..."
