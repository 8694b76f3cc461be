"""Bytes as people read them. Inside mindswap sizes are integer bytes."""

__all__ = ["format_bytes"]


def format_bytes(size_bytes: int) -> str:
    """Binary units with at most one decimal: `86.0 MiB`, `512 B`."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.1f} {unit}" if unit != "B" else f"{size_bytes} B"
        size /= 1024
    return f"{size:.1f} GiB"
