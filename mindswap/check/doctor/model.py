"""Facts about a machine and a job, and what is found in them: plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mindswap.config.problem import Level
from mindswap.config.step import DEFAULT_MASTER_PORT


@dataclass(frozen=True)
class Diagnosis:
    """One thing that is not as it should be."""

    check: str  # a stable name, for scripts
    severity: Level  # an error keeps a training from starting, or from swapping; a warning only some models
    what: str  # was found
    why: str  # it matters
    fix: str  # what to do


def error(check: str, what: str, why: str, fix: str) -> Diagnosis:
    """What keeps a training from starting, or from swapping."""
    return Diagnosis(check, Level.ERROR, what, why, fix)


def warning(check: str, what: str, why: str, fix: str) -> Diagnosis:
    """What works, or fails only with some models."""
    return Diagnosis(check, Level.WARNING, what, why, fix)


@dataclass(frozen=True)
class Package:
    """An installed distribution."""

    version: str  # as it says itself
    folder: str  # on the path of Python where it is


@dataclass(frozen=True)
class Software:
    """What is installed."""

    python: tuple[int, int]  # version of the interpreter
    # every copy of a distribution, in the order of the path: the first is the one imported
    packages: Mapping[str, tuple[Package, ...]]
    # own_version, own_folder: of the mindswap that runs
    own_version: str
    own_folder: str
    # versions of CANN that the installed MindSpore names as its own; empty if it does not say
    cann_of_mindspore: tuple[str, ...] = ()
    cann: str = ""  # version of CANN, "" for none
    cann_folder: str = ""  # where it is looked for
    driver: str = ""  # version of the driver of the cards, "" for none
    num_cards: int = 0  # devices of the machine

    def version(self, name: str) -> str:
        """Of the copy that is imported; "" if there is none."""
        found = self.packages.get(name, ())
        return found[0].version if found else ""


@dataclass(frozen=True)
class Machine:
    """Limits and resources. Sizes are bytes; None is unlimited, or unknown where it says so."""

    memlock_bytes: int | None = None  # memory that a process may lock
    host_bytes: int | None = None  # memory that is available, within the limit of the container; None if unknown
    shm_bytes: int | None = None  # size of /dev/shm; None if unknown
    num_numa_nodes: int = 1  # with memory
    num_allowed_nodes: int = 1  # on which this process may run
    is_numa_balancing: bool = False  # the kernel moves pages between nodes
    ports: frozenset[int] = frozenset()  # on which something listens
    # first and last port that the kernel gives to connections; None if unknown
    ephemeral_ports: tuple[int, int] | None = None
    reserved_ports: frozenset[int] = frozenset()  # that it does not give
    interfaces: frozenset[str] = frozenset()  # of the network
    cache_folder: str = ""  # of mindswap
    cache_problem: str = ""  # why it cannot be written; "" if it can
    cache_bytes: int = 0  # of its files
    tmp_free_bytes: int | None = None  # in the folder for temporary files; None if unknown


@dataclass(frozen=True)
class CheckedJob:
    """What depends on a configuration."""

    file: str  # the configuration
    is_pynative: bool = False  # it is of MindFormers 2.x
    num_errors: int = 0  # that `mindswap check` finds
    swaps: bool = False  # `swap_config.swap` is on
    disables_lazy_inline: bool = False  # `model.model_config.disable_lazy_inline` is on
    num_local_workers: int = 8  # workers on this machine
    swapped_bytes: int = 0  # that one worker has in host memory at a time, at most
    loads_whole_checkpoint: bool = False  # `auto_trans_ckpt` is on, and there is a checkpoint
    checkpoint_bytes: int = 0  # of its files
    master_port: int = DEFAULT_MASTER_PORT  # where the scheduler listens


@dataclass(frozen=True)
class MachineFacts:
    """All that is looked at."""

    # software, machine: of this computer
    software: Software
    machine: Machine
    environ: Mapping[str, str] = field(default_factory=dict)  # environment variables
    job: CheckedJob | None = None  # of a configuration; None without one
