"""What was read from the log of one worker: plain data."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class SetLine:
    """One line that says what was set on a layer: `Set op_swap at layer 0: .attention, value=20`."""

    layer_index: int  # the layer it speaks of
    title: str  # `op_swap`, `layer swap`, `full recompute`, `select recompute`, ...
    text: str  # the line from `Set` on, runs of spaces as one
    is_upstream: bool = False  # MindFormers' own code wrote it, not mindswap
    is_repaired: bool = False  # put together from two pieces; never seen whole


@dataclass(frozen=True)
class OomEvent:
    """A worker asked for memory and did not get it."""

    form: str  # name of the form, an entry of `mindswap.training.logs.oom.FORMS`
    text: str  # the line, shortened
    requested_bytes: int | None = None  # what it asked for; None if the line does not say
    is_host: bool = False  # memory of the host, not of the device
    free_bytes: int | None = None  # what it could have had; None if the line does not say

    @property
    def missing_bytes(self) -> int | None:
        """What this one request lacked; None if the line does not say how much it was."""
        return None if self.requested_bytes is None else max(self.requested_bytes - (self.free_bytes or 0), 0)


@dataclass(frozen=True)
class MemoryStatistics:
    """What MindSpore prints with `MS_MEMORY_STATISTIC=1`, or mindswap in a training; None for what was not printed."""

    device_bytes: int | None = None  # all memory of the device
    available_bytes: int | None = None  # what MindSpore may use of it
    used_peak_bytes: int | None = None  # highest use without fragments, over all statistics of the log
    actual_peak_bytes: int | None = None  # highest use with fragments, over all statistics of the log
    last_used_peak_bytes: int | None = None  # use without fragments in the last statistics
    last_actual_peak_bytes: int | None = None  # use with fragments in the last statistics


@dataclass(frozen=True)
class WorkerLog:
    """The log of one worker."""

    worker: int  # number of the worker, counted over all nodes
    node: str = ""  # folder of its node, as `node_3`; "" where the logs of all workers are in one folder
    size_bytes: int = 0  # length of the log when it was read
    problem: str = ""  # why it could not be read; "" if it was read
    # distinct `Set ...` lines in order; `num_lines_left_out` counts those over the limit
    set_lines: tuple[SetLine, ...] = ()
    num_lines_left_out: int = 0
    # `Set ...` lines of which a part is missing: cut off, or mixed with another line
    broken_lines: tuple[str, ...] = ()
    is_lazy_inline_on: bool = False  # mindswap said that lazy_inline is on
    is_cpu_run: bool = False  # mindswap said that this run is on CPU, where nothing is offloaded
    has_upstream_swap: bool = False  # MindFormers logged a swap_config of its own (`Formative layer swap`)
    num_offload_warnings: int = 0  # warnings of the compiler that an offload has no effect
    oom_events: tuple[OomEvent, ...] = ()  # distinct ones in order
    memory: MemoryStatistics = field(default_factory=MemoryStatistics)  # memory statistics
    is_finished: bool = False  # the training ended by itself (`Training Over!`)
    last_step: str = ""  # last training step in the log, as `37/40`; "" for none
    last_error: str = ""  # last error line; "" for none
    is_cut_off: bool = False  # the last line has no end
