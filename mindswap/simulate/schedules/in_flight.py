"""What a stage holds for passes that have not been finished. Pure; reads lists of passes."""

from collections.abc import Iterable

from mindswap.simulate.schedules.passes import Pass, Work

__all__ = ["most_in_flight"]


def most_in_flight(passes: Iterable[Pass]) -> int:
    """Most forward passes whose backward (both its halves, where it is cut) is not done."""
    held = most = 0
    for entry in passes:
        if entry.work is Work.FORWARD:
            held += 1
            most = max(most, held)
        elif entry.work is not Work.INPUT_GRADIENT:
            held -= 1
    return most
