"""Styles of kinds of bars and of memory, words and colours, the same in PNG and HTML."""

from dataclasses import dataclass
from enum import IntEnum

from mindswap.simulator.program import MemoryKind


class Lane(IntEnum):
    """Rows of a stage in a picture of its streams."""

    COMPUTE = 0
    COMMUNICATION = 1
    RECEIVING = 2
    COPY_OUT = 3
    COPY_IN = 4

    @property
    def title(self) -> str:
        """Name of the row."""
        return ("compute", "communication", "receiving", "copy out (D2H)", "copy in (H2D)")[self]


class BarKind(IntEnum):
    """Kind of a bar in such a row."""

    FORWARD = 0
    BACKWARD = 1
    RECOMPUTE = 2
    COLLECTIVE = 3
    BETWEEN_STAGES = 4
    COPY_OUT = 5
    COPY_IN = 6
    WAIT_COPY_OUT = 7
    WAIT_COPY_IN = 8
    WAIT_COMMUNICATION = 9
    BUBBLE = 10
    TERM = 11

    @property
    def is_wait(self) -> bool:
        """Nothing runs."""
        return BarKind.WAIT_COPY_OUT <= self <= BarKind.BUBBLE


@dataclass(frozen=True)
class Style:
    """Words and colours of one kind; colours on a light and on a dark page."""

    title: str
    light: str
    dark: str


_BLUE, _GREEN, _GREY = ("#3b76c4", "#5b9bf0"), ("#2f9e77", "#3fbf92"), ("#8c96a3", "#94a0b0")
_PURPLE, _LILAC = ("#8460b8", "#a584db"), ("#c2add9", "#7d6a9c")
_ORANGE, _YELLOW, _RED = ("#e07b26", "#f0913d"), ("#edb92e", "#f2c64b"), ("#cf2f3a", "#ff5a64")

BAR_STYLES = {
    BarKind.FORWARD: Style("forward", *_BLUE),
    BarKind.BACKWARD: Style("backward", *_GREEN),
    BarKind.RECOMPUTE: Style("recompute", *_GREY),
    BarKind.COLLECTIVE: Style("collective", *_PURPLE),
    BarKind.BETWEEN_STAGES: Style("send, receive", *_LILAC),
    BarKind.COPY_OUT: Style("copy out", *_ORANGE),
    BarKind.COPY_IN: Style("copy in", *_YELLOW),
    BarKind.WAIT_COPY_OUT: Style("waits for a copy out", *_RED),
    BarKind.WAIT_COPY_IN: Style("waits for a copy in", "#e8737b", "#c23c47"),
    BarKind.WAIT_COMMUNICATION: Style("waits for communication", "#d9a7d6", "#8a4f86"),
    BarKind.BUBBLE: Style("bubble", "#e6e9ee", "#2b323c"),
    BarKind.TERM: Style("after the last operator", "#5f6b7a", "#6f7d8f"),
}
# From the bottom of the stack to its top, above what is static.
MEMORY_STYLES = {
    MemoryKind.KEPT: Style("kept for backward", "#7aa5dc", "#4a7fc4"),
    MemoryKind.OFFLOADING: Style("being copied out", *_ORANGE),
    MemoryKind.PREFETCHED: Style("copied back", *_YELLOW),
    MemoryKind.RECOMPUTED: Style("recomputed", *_GREY),
    MemoryKind.TRANSIENT: Style("short-lived", "#7cc4ab", "#2f8f70"),
    MemoryKind.GRADIENT: Style("gradients of weights", *_PURPLE),
}
STATIC = Style("static", "#d5dae1", "#3a4350")
BUDGET = Style("budget", "#b3202a", "#ff6b74")
