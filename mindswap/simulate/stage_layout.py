"""Which sections of the model are where, and in which order a stage runs them. Pure data."""

from dataclasses import dataclass

from mindswap.simulate.schedules import Pass, Schedule, Shape, find_schedule, order_passes

__all__ = ["StageLayout"]


@dataclass(frozen=True)
class StageLayout:
    """Which sections of the model are where.

    Attributes:
        chunks: for each stage, for each of its virtual chunks, the sections in forward order: positions in the
            list of blocks (0 is what is before the layers, the last what is behind them).
        num_micro_batches: micro-batches of one step.
        closing_bytes: for each stage, gradients that are made for the optimizer when backward has ended, beside those
            that are there by then; none if empty.
        scheduler: a name of `schedules.SCHEDULES`.
        num_sequences: pieces that each sequence is cut into.
    """

    chunks: tuple[tuple[tuple[int, ...], ...], ...]
    num_micro_batches: int = 1
    closing_bytes: tuple[int, ...] = ()
    scheduler: str = "1f1b"
    num_sequences: int = 1

    @property
    def num_stages(self) -> int:
        """Pipeline stages."""
        return len(self.chunks)

    @property
    def num_turns(self) -> int:
        """Passes of each chunk in either direction: pieces of sequences of all micro-batches."""
        return self.num_micro_batches * self.num_sequences

    @property
    def shape(self) -> Shape:
        """What the schedule arranges."""
        num_chunks = max(map(len, self.chunks))
        return Shape(self.num_stages, num_chunks, self.num_micro_batches, self.num_sequences)

    @property
    def schedule(self) -> Schedule:
        """The schedule that acts."""
        return find_schedule(self.scheduler, self.shape)

    def passes(self, stage: int) -> tuple[Pass, ...]:
        """What a stage does in one step, in order."""
        return order_passes(self.scheduler, stage, self.shape)

    def stage_of(self, section: int) -> int:
        """The stage that has a section."""
        return next(stage for stage, chunks in enumerate(self.chunks) if any(section in own for own in chunks))

    def short_of(self, num_micro_batches: int) -> int:
        """So many micro-batches or a few more, as many as show the same full pipeline; at most those of the step."""
        return self.schedule.short_step(self.shape, num_micro_batches)

    @property
    def are_ends_together(self) -> bool:
        """One stage has both what is before the layers and what is behind them."""
        last = max(section for chunks in self.chunks for own in chunks for section in own)
        return self.stage_of(0) == self.stage_of(last)
