"""What is on the device beside MindSpore's pool, in words: no policy moves it, and no budget counts it."""

from collections.abc import Sequence

from mindswap.units import format_bytes

__all__ = ["describe_outside"]


def describe_outside(outside_bytes: int, communicators: Sequence[str], left_bytes: int) -> str:
    """`outside the pool  0.8 GiB of HCCL buffers, 2 for each of 2 communicators (...), of 6.0 GiB that are left`.

    Args:
        outside_bytes: buffers of HCCL.
        communicators: what each is for.
        left_bytes: memory of the card that MindSpore does not take.

    Returns:
        "" where there is none.
    """
    if not outside_bytes:
        return ""
    number = f"{len(communicators)} communicator{'s' if len(communicators) != 1 else ''}"
    text = f"outside the pool  {format_bytes(outside_bytes)} of HCCL buffers, 2 for each of {number}"
    left = (
        f"of {format_bytes(left_bytes)} that are left"
        if outside_bytes <= left_bytes
        else (f"but only {format_bytes(left_bytes)} are left: lower max_device_memory or HCCL_BUFFSIZE")
    )
    return f"{text} ({', '.join(communicators)}), {left}"
