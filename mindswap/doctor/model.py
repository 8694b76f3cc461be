"""Facts about a machine and a job, and what is found in them: plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mindswap.document.problem import Level


@dataclass(frozen=True)
class Diagnosis:
    """One thing that is not as it should be.

    Attributes:
        check: a stable name, for scripts.
        severity: an error keeps a training from starting, or from swapping; a warning only some models.
        what: was found.
        why: it matters.
        fix: what to do.
    """

    check: str
    severity: Level
    what: str
    why: str
    fix: str


def error(check: str, what: str, why: str, fix: str) -> Diagnosis:
    """What keeps a training from starting, or from swapping."""
    return Diagnosis(check, Level.ERROR, what, why, fix)


def warning(check: str, what: str, why: str, fix: str) -> Diagnosis:
    """What works, or fails only with some models."""
    return Diagnosis(check, Level.WARNING, what, why, fix)


@dataclass(frozen=True)
class Package:
    """An installed distribution.

    Attributes:
        version: as it says itself.
        folder: on the path of Python where it is.
    """

    version: str
    folder: str


@dataclass(frozen=True)
class Software:
    """What is installed.

    Attributes:
        python: version of the interpreter.
        packages: every copy of a distribution, in the order of the path: the first is the one imported.
        cann_of_mindspore: versions of CANN that the installed MindSpore names as its own; empty if it does not say.
        cann: version of CANN, "" for none.
        cann_folder: where it is looked for.
        driver: version of the driver of the cards, "" for none.
        num_cards: devices of the machine.
        own_version, own_folder: of the mindswap that runs.
    """

    python: tuple[int, int]
    packages: Mapping[str, tuple[Package, ...]]
    own_version: str
    own_folder: str
    cann_of_mindspore: tuple[str, ...] = ()
    cann: str = ""
    cann_folder: str = ""
    driver: str = ""
    num_cards: int = 0

    def version(self, name: str) -> str:
        """Of the copy that is imported; "" if there is none."""
        found = self.packages.get(name, ())
        return found[0].version if found else ""


@dataclass(frozen=True)
class Machine:
    """Limits and resources. Sizes are bytes; None is unlimited, or unknown where it says so.

    Attributes:
        memlock_bytes: memory that a process may lock.
        host_bytes: memory that is available, within the limit of the container; None if unknown.
        shm_bytes: size of /dev/shm; None if unknown.
        num_numa_nodes: with memory.
        num_allowed_nodes: on which this process may run.
        is_numa_balancing: the kernel moves pages between nodes.
        ports: on which something listens.
        ephemeral_ports: first and last port that the kernel gives to connections; None if unknown.
        reserved_ports: that it does not give.
        interfaces: of the network.
        cache_folder: of mindswap.
        cache_problem: why it cannot be written; "" if it can.
        tmp_free_bytes: in the folder for temporary files; None if unknown.
    """

    memlock_bytes: int | None = None
    host_bytes: int | None = None
    shm_bytes: int | None = None
    num_numa_nodes: int = 1
    num_allowed_nodes: int = 1
    is_numa_balancing: bool = False
    ports: frozenset[int] = frozenset()
    ephemeral_ports: tuple[int, int] | None = None
    reserved_ports: frozenset[int] = frozenset()
    interfaces: frozenset[str] = frozenset()
    cache_folder: str = ""
    cache_problem: str = ""
    tmp_free_bytes: int | None = None


@dataclass(frozen=True)
class CheckedJob:
    """What depends on a configuration.

    Attributes:
        file: the configuration.
        is_pynative: it is of MindFormers 2.x.
        num_errors: that `mindswap check` finds.
        swaps: `swap_config.swap` is on.
        disables_lazy_inline: `model.model_config.disable_lazy_inline` is on.
        num_local_workers: workers on this machine.
        swapped_bytes: that one worker has in host memory at a time, at most.
        loads_whole_checkpoint: `auto_trans_ckpt` is on, and there is a checkpoint.
        checkpoint_bytes: of its files.
        master_port: where the scheduler listens.
    """

    file: str
    is_pynative: bool = False
    num_errors: int = 0
    swaps: bool = False
    disables_lazy_inline: bool = False
    num_local_workers: int = 8
    swapped_bytes: int = 0
    loads_whole_checkpoint: bool = False
    checkpoint_bytes: int = 0
    master_port: int = 8118


@dataclass(frozen=True)
class MachineFacts:
    """All that is looked at.

    Attributes:
        software, machine: of this computer.
        environ: environment variables.
        job: of a configuration; None without one.
    """

    software: Software
    machine: Machine
    environ: Mapping[str, str] = field(default_factory=dict)
    job: CheckedJob | None = None
