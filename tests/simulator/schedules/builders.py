"""Pipelines of one operator per pass, to see schedules alone: transfers take no time."""

from mindswap.simulator.engine import run_program
from mindswap.simulator.layer_block import Block, BlockOp, BlockTensor, Consumers
from mindswap.simulator.layout import StageLayout
from mindswap.simulator.placing import TransferCosts
from mindswap.simulator.program import NO_OP, OpKind
from mindswap.simulator.program_builder import build_program
from mindswap.simulator.schedules import order_passes
from mindswap.simulator.schedules.rounds import Pass, PassWork, Shape
from mindswap.simulator.timeline import Timeline

FREE = TransferCosts(lambda size: 0, lambda size: 0)


def num_forward(shape: Shape) -> int:
    """Forward passes of a stage."""
    return shape.num_micro_batches * shape.num_chunks * shape.num_sequences


def passes_in_words(name: str, stage: int, shape: Shape) -> str:
    """F, B, I (gradient of inputs), W (gradient of weights), micro-batch, chunk a, b, ..., piece x, y, ..."""
    chunk = (lambda entry: "abc"[entry.chunk]) if shape.num_chunks > 1 else (lambda entry: "")
    piece = (lambda entry: "xyz"[entry.sequence]) if shape.num_sequences > 1 else (lambda entry: "")
    return " ".join(
        f"{'FBIW'[entry.work]}{entry.micro_batch}{chunk(entry)}{piece(entry)}"
        for entry in order_passes(name, stage, shape)
    )


def layer(forward_ns: int, input_ns: int, weight_ns: int) -> Block:
    """Three operators; what forward makes, 1 byte, is read by both of backward."""
    kept = BlockTensor(
        "kept", 1, True, False, 0, Consumers(NO_OP, 0, 1, 0, 0, 1, 1), None
    )  # fmt: skip
    backward = (
        BlockOp("grad", OpKind.BACKWARD, input_ns),
        BlockOp("weight", OpKind.BACKWARD, weight_ns, is_weight=True),
    )
    return Block((BlockOp("op", OpKind.FORWARD, forward_ns),), backward, (kept,), ())


def layout_of(name: str, shape: Shape) -> StageLayout:
    """One layer for each chunk; the first and the last section are empty."""
    cells = shape.num_stages * shape.num_chunks
    chunks: list[list[tuple[int, ...]]] = [[] for _ in range(shape.num_stages)]
    for cell in range(cells):
        chunk, position = divmod(cell, shape.num_stages)
        stage = shape.num_stages - 1 - position if name == "zero_bubble_v" and chunk == 1 else position
        own = (*([0] if cell == 0 else []), cell + 1, *([cells + 1] if cell == cells - 1 else []))
        chunks[stage].append(own)
    return StageLayout(tuple(map(tuple, chunks)), shape.num_micro_batches, (), name, shape.num_sequences)


def run(name: str, shape: Shape, forward_ns: int = 1, input_ns: int = 1, weight_ns: int = 1) -> Timeline:
    """The step."""
    empty = Block((), (), (), ())
    cells = shape.num_stages * shape.num_chunks
    blocks = [empty, *[layer(forward_ns, input_ns, weight_ns)] * cells, empty]
    return run_program(build_program(blocks, FREE, layout_of(name, shape)))


def reference_ns(name: str, shape: Shape, forward_ns: int, input_ns: int, weight_ns: int) -> int | None:
    """Step time, from the lists alone: a pass starts when the one before it and what it needs have ended.

    None where stages wait for each other.

    Walks over the stages again and again until no pass can be placed any more; knows nothing of programs.
    """
    costs = {
        PassWork.FORWARD: forward_ns,
        PassWork.BACKWARD: input_ns + weight_ns,
        PassWork.INPUT_GRADIENT: input_ns,
        PassWork.WEIGHT_GRADIENT: weight_ns,
    }
    # The cell (place in the model) of a chunk on a stage, and back.
    cell_of, at = {}, {}
    for stage, chunks in enumerate(layout_of(name, shape).chunks):
        for chunk, segments in enumerate(chunks):
            cell = max(1, segments[0])
            cell_of[stage, chunk], at[cell] = cell, (stage, chunk)
    lists = [list(order_passes(name, stage, shape)) for stage in range(shape.num_stages)]
    ends: dict[tuple[int, int, int, bool], int] = {}  # (cell, micro-batch, piece, is forward)
    free = [0] * shape.num_stages
    progress = True
    while progress:
        progress = False
        for stage, waiting in enumerate(lists):
            while waiting:
                entry = waiting[0]
                cell = cell_of[stage, entry.chunk]
                needed = _needed(entry, cell, len(at))
                if needed is not None and needed not in ends:
                    break
                begin = max(free[stage], ends[needed] if needed is not None else 0)
                free[stage] = begin + costs[entry.work]
                if entry.work is not PassWork.WEIGHT_GRADIENT:
                    key = (cell, entry.micro_batch, entry.sequence, entry.work is PassWork.FORWARD)
                    ends[key] = free[stage]
                waiting.pop(0)
                progress = True
    return None if any(lists) else max(free)


def _needed(entry: Pass, cell: int, num_cells: int) -> tuple[int, int, int, bool] | None:
    if entry.work is PassWork.FORWARD:
        return (cell - 1, entry.micro_batch, entry.sequence, True) if cell > 1 else None
    if entry.work is PassWork.WEIGHT_GRADIENT:
        return None
    return (cell + 1, entry.micro_batch, entry.sequence, False) if cell < num_cells else None
