"""What was read from the log of one worker: plain data."""

from dataclasses import dataclass, field

__all__ = ["MemoryStatistics", "OomEvent", "SetLine", "WorkerLog"]


@dataclass(frozen=True)
class SetLine:
    """One line that says what was set on a layer: `Set op_swap at layer 0: .attention, value=20`.

    Attributes:
        layer_index: the layer it speaks of.
        title: `op_swap`, `layer swap`, `full recompute`, `select recompute`, ...
        text: the line from `Set` on, runs of spaces as one.
        is_upstream: MindFormers' own code wrote it, not mindswap.
        is_repaired: put together from two pieces; never seen whole.
    """

    layer_index: int
    title: str
    text: str
    is_upstream: bool = False
    is_repaired: bool = False


@dataclass(frozen=True)
class OomEvent:
    """A worker asked for memory and did not get it.

    Attributes:
        form: name of the form, an entry of `mindswap.logs.oom.FORMS`.
        text: the line, shortened.
        requested_bytes: what it asked for; None if the line does not say.
        is_host: memory of the host, not of the device.
        free_bytes: what it could have had; None if the line does not say.
    """

    form: str
    text: str
    requested_bytes: int | None = None
    is_host: bool = False
    free_bytes: int | None = None

    @property
    def missing_bytes(self) -> int | None:
        """What this one request lacked; None if the line does not say how much it was."""
        return None if self.requested_bytes is None else max(self.requested_bytes - (self.free_bytes or 0), 0)


@dataclass(frozen=True)
class MemoryStatistics:
    """What MindSpore prints with `MS_MEMORY_STATISTIC=1`, or mindswap while it trains; None for what was not printed.

    Attributes:
        device_bytes: all memory of the device.
        available_bytes: what MindSpore may use of it.
        used_peak_bytes: highest use without fragments, over all statistics of the log.
        actual_peak_bytes: highest use with fragments, over all statistics of the log.
        last_used_peak_bytes: use without fragments in the last statistics.
        last_actual_peak_bytes: use with fragments in the last statistics.
    """

    device_bytes: int | None = None
    available_bytes: int | None = None
    used_peak_bytes: int | None = None
    actual_peak_bytes: int | None = None
    last_used_peak_bytes: int | None = None
    last_actual_peak_bytes: int | None = None


@dataclass(frozen=True)
class WorkerLog:
    """The log of one worker.

    Attributes:
        worker: number of the worker.
        size_bytes: length of the log when it was read.
        problem: why it could not be read; "" if it was read.
        set_lines: distinct `Set ...` lines in order; `num_lines_left_out` counts those over the limit.
        broken_lines: `Set ...` lines of which a part is missing: cut off, or mixed with another line.
        is_lazy_inline_on: mindswap said that lazy_inline is on.
        is_cpu_run: mindswap said that this run is on CPU, where nothing is offloaded.
        has_upstream_swap: MindFormers logged a swap_config of its own (`Formative layer swap`).
        num_offload_warnings: warnings of the compiler that an offload has no effect.
        oom_events: distinct ones in order.
        memory: memory statistics.
        is_finished: the training ended by itself (`Training Over!`).
        last_step: last training step in the log, as `37/40`; "" for none.
        last_error: last error line; "" for none.
        is_cut_off: the last line has no end.
    """

    worker: int
    size_bytes: int = 0
    problem: str = ""
    set_lines: tuple[SetLine, ...] = ()
    num_lines_left_out: int = 0
    broken_lines: tuple[str, ...] = ()
    is_lazy_inline_on: bool = False
    is_cpu_run: bool = False
    has_upstream_swap: bool = False
    num_offload_warnings: int = 0
    oom_events: tuple[OomEvent, ...] = ()
    memory: MemoryStatistics = field(default_factory=MemoryStatistics)
    is_finished: bool = False
    last_step: str = ""
    last_error: str = ""
    is_cut_off: bool = False
