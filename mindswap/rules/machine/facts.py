"""Facts about a machine and a job, and what is found in them: plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mindswap.config.nodes import Document, is_int
from mindswap.config.problem import Level
from mindswap.config.step_settings import StepSettings, read_step_settings
from mindswap.files import package_data
from mindswap.policy.formats.mindformers2.tables import ConfigFormat, find_format
from mindswap.policy.model import LayerSwap, OpSwap, Policy, union_layers
from mindswap.rules.checker import check_document


@dataclass(frozen=True)
class Diagnosis:
    """One thing that is not as it should be."""

    check: str  # a stable name, for scripts
    severity: Level  # an error keeps a training from starting, or from swapping; a warning only some models
    what: str  # was found
    why: str  # it matters
    fix: str  # what to do


def diagnosis(check: str, severity: Level | None = None, **values: object) -> Diagnosis:
    """The finding of this name in `data/doctor/findings.yaml`, with its `{...}` filled in."""
    text = package_data("doctor/findings.yaml")[check]
    what, why, fix = (text[part].format(**values) for part in ("what", "why", "fix"))
    return Diagnosis(check, severity or Level(text["level"]), what, why, fix)


@dataclass(frozen=True)
class Package:
    """An installed distribution."""

    version: str  # as it says itself
    folder: str  # on the path of Python where it is


@dataclass(frozen=True)
class Software:
    """Installed software."""

    python: tuple[int, int]  # version of the interpreter
    # every copy of a distribution, in the order of the path: the first is the one imported
    packages: Mapping[str, tuple[Package, ...]]
    # mindswap_version, mindswap_folder: the mindswap that runs
    mindswap_version: str
    mindswap_folder: str
    # versions of CANN that the installed MindSpore names as its own; empty if it does not say
    cann_of_mindspore: tuple[str, ...] = ()
    cann: str = ""  # version of CANN, "" for none
    cann_folder: str = ""  # where it is looked for
    driver: str = ""  # version of the driver of the cards, "" for none
    num_cards: int = 0  # devices of the machine

    def version(self, name: str) -> str:
        """Of the copy that is imported; "" if there is none."""
        copies = self.packages.get(name, ())
        return copies[0].version if copies else ""


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
    cache_danger: str = ""  # why others can change it; "" if they cannot
    cache_unfit: str = ""  # why it is not in its default folder; "" if it is, or the user chose one
    cache_bytes: int = 0  # of its entries
    tmp_free_bytes: int | None = None  # in the folder for temporary files; None if unknown
    num_processors: int = 0  # on which this process may run; 0 if unknown
    num_installed_processors: int = 0  # of the machine; 0 if unknown


@dataclass(frozen=True)
class CheckedJob:
    """Facts that depend on a configuration."""

    file: str  # the configuration
    is_pynative: bool = False  # it is of MindFormers 2.x
    num_errors: int = 0  # that `mindswap check` finds
    swaps: bool = False  # `swap_config.swap` is on
    disables_lazy_inline: bool = False  # `model.model_config.disable_lazy_inline` is on
    num_local_workers: int = 8  # workers on this machine
    swapped_bytes: int = 0  # that one worker has in host memory at a time, at most
    loads_whole_checkpoint: bool = False  # `auto_trans_ckpt` is on, and there is a checkpoint
    checkpoint_bytes: int = 0  # of its files


@dataclass(frozen=True)
class MachineFacts:
    """All that is looked at."""

    # software, machine: of this computer
    software: Software
    machine: Machine
    environ: Mapping[str, str] = field(default_factory=dict)  # environment variables
    job: CheckedJob | None = None  # of a configuration; None without one


# What a configuration needs of the machine, without compiling it.

DEFAULT_NUM_WORKERS = 8
_CHECKPOINTS = (".ckpt", ".safetensors")


def gather_job(document: Document, environ: Mapping[str, str], num_cards: int) -> CheckedJob:
    """Facts of a training before it runs; a machine without cards is taken to have as many as usual."""
    if find_format(document) is ConfigFormat.PYNATIVE:
        return CheckedJob(document.file, is_pynative=True)
    checked = check_document(document, environ=environ, ignore={"lazy-inline-env"}, is_training_start=True)
    step = read_step_settings(document)
    load_checkpoint = document.value("load_checkpoint")
    checkpoint = load_checkpoint if isinstance(load_checkpoint, str) else ""
    return CheckedJob(
        document.file,
        num_errors=len(checked.errors),
        swaps=checked.is_swap_enabled,
        disables_lazy_inline=document.value("model", "model_config", "disable_lazy_inline") is True,
        num_local_workers=min(step.num_cards, num_cards or DEFAULT_NUM_WORKERS),
        swapped_bytes=_swapped_bytes(document, step, checked.policy, checked.num_layers),
        loads_whole_checkpoint=bool(checkpoint) and document.value("auto_trans_ckpt") is True,
        checkpoint_bytes=_size_of(Path(checkpoint)) if checkpoint else 0,
    )


def layer_activation_bytes(seq_length: int, batch_size: int, hidden_size: int, model_parallel: int) -> int:
    """Activations of one layer for one micro-batch in half precision: 34 s b h bytes.

    Table 2 of Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (arXiv:2205.05198),
    without the 5 a s^2 b of attention scores, which flash attention never writes.
    """
    return 34 * seq_length * batch_size * hidden_size // model_parallel


def _swapped_bytes(document: Document, step: StepSettings, policy: Policy | None, num_layers: int | None) -> int:
    """At most: everything of every layer that swap names, for all micro-batches that the first stage holds."""
    hidden = document.value("model", "model_config", "hidden_size")
    if policy is None or not policy.is_swap_enabled or not is_int(hidden) or not num_layers:
        return 0
    swaps: tuple[LayerSwap | OpSwap, ...] = (*policy.layer_swap, *policy.op_swap)
    swapped_layers = union_layers([entry.layers for entry in swaps]).resolve(num_layers)
    num_stages = step.pipeline.num_stages
    num_in_flight = min(step.num_micro_batches, num_stages)
    layer_bytes = layer_activation_bytes(
        step.seq_length, step.batch_size, hidden, step.model_parallel * step.context_parallel
    )
    return layer_bytes * -(-len(swapped_layers) // num_stages) * num_in_flight


def _size_of(path: Path) -> int:
    """Of the checkpoint files of one copy: of a folder `rank_0`, ... all ranks together are one."""
    try:
        if path.is_file():
            return path.stat().st_size
        return sum(file.stat().st_size for file in path.rglob("*") if file.suffix in _CHECKPOINTS)
    except OSError:
        return 0
