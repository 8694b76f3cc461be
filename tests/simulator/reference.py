"""A second simulator, slow and plain, to compare the engine with: a clock that ticks every nanosecond.

At each tick everything that may start starts, then every copy that runs does one nanosecond of work. It knows
operators and copies as objects, asks each rule anew at every tick and predicts nothing.
"""

from mindswap.simulator.program import NO_OP, OpKind, Program


class Job:
    """An operator or a copy: what it does not know yet is None."""

    def __init__(self, work: int):
        self.work_left = work
        self.start = None
        self.end = None


def tick_through(program: Program, last_tick: int = 100_000) -> tuple[list[Job], list[Job], list[Job]]:
    """Operators, copies out and copies in, with their times; times stay None in a deadlock."""
    ops = [Job(1000 * int(work)) for work in program.ops.duration_ns]
    outs = [Job(1000 * int(work)) for work in program.copies.out_ns]
    backs = [Job(1000 * int(work)) for work in program.copies.in_ns]
    stages = [Stage(program, stage, ops, outs, backs) for stage in range(program.num_stages)]
    for now in range(last_tick):
        while any([stage.start_and_end(now) for stage in stages]):
            pass
        if all(job.end is not None for job in (*ops, *outs, *backs)):
            break
        running = [job for stage in stages for job in stage.running()]
        if not running:
            break
        for stage in stages:
            stage.work()
    return ops, outs, backs


class Stage:
    """The four queues of a stage, each a list of (job, other jobs that must have ended)."""

    def __init__(self, program: Program, stage: int, ops: list[Job], outs: list[Job], backs: list[Job]):
        copies = program.copies
        positions = range(program.stage_starts[stage], program.stage_starts[stage + 1])
        own = [copy for copy in range(len(copies)) if copies.producer_op[copy] in positions]
        self.contended_permille = program.contended_permille
        self.compute: list[tuple[Job, list[Job]]] = []
        self.communication: list[tuple[Job, list[Job]]] = []
        self.receiving: list[tuple[Job, list[Job]]] = []
        for op in positions:
            needs = [ops[program.ops.wait_op[op]]] if program.ops.wait_op[op] != NO_OP else []
            needs += [backs[copy] for copy in own if copies.first_user_op[copy] == op]
            if program.ops.kind[op] == OpKind.RECEIVE:
                self.receiving.append((ops[op], needs))
            elif OpKind(program.ops.kind[op]).is_communication:
                self.communication.append((ops[op], needs))
            else:
                needs += [outs[copy] for copy in own if copies.release_op[copy] < op]
                self.compute.append((ops[op], needs))
        self.outs = [
            (outs[copy], [ops[copies.producer_op[copy]]])
            for copy in sorted(own, key=lambda copy: (copies.producer_op[copy], copy))
        ]
        self.backs = [
            (backs[copy], [outs[copy]] + [ops[p] for p in [copies.prefetch_op[copy]] if p != NO_OP])
            for copy in sorted(own, key=lambda copy: (copies.first_user_op[copy], copy))
        ]

    def start_and_end(self, now: int) -> bool:
        """Ends what is through and starts the first that waits in each queue; whether anything happened."""
        happened = False
        for queue in (self.compute, self.communication, self.receiving, self.outs, self.backs):
            waiting = [(job, needs) for job, needs in queue if job.end is None]
            if not waiting:
                continue
            job, needs = waiting[0]
            if job.start is None and all(need.end is not None for need in needs):
                job.start = now
                happened = True
            if job.start is not None and job.work_left <= 0:
                job.end = now
                happened = True
        return happened

    def running(self) -> list[Job]:
        """What has started and not ended."""
        queues = (self.compute, self.communication, self.receiving, self.outs, self.backs)
        return [job for queue in queues for job, _ in queue if job.start is not None and job.end is None]

    def work(self) -> None:
        """One nanosecond of work for everything that runs."""
        running = self.running()
        copying = [job for job, _ in (*self.outs, *self.backs) if job in running]
        for job in running:
            job.work_left -= self.contended_permille if job in copying and len(copying) == 2 else 1000
