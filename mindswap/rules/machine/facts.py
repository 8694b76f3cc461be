"""Facts about a machine and a job, and diagnoses made from them, as plain data."""

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
    """A problem of a machine or its software."""

    check: str  # stable name, for scripts
    severity: Level  # an error prevents a training, or its swap; a warning affects some models only
    what: str  # description
    why: str  # consequence
    fix: str  # suggested action


def diagnosis(check: str, severity: Level | None = None, **values: object) -> Diagnosis:
    """Return a diagnosis with the texts of `data/doctor/findings.yaml`.

    Args:
        check: name of the diagnosis in the file.
        severity: severity; None for that of the file.
        values: values of the `{...}` fields of the texts.
    """
    text = package_data("doctor/findings.yaml")[check]
    what, why, fix = (text[part].format(**values) for part in ("what", "why", "fix"))
    return Diagnosis(check, severity or Level(text["level"]), what, why, fix)


@dataclass(frozen=True)
class Package:
    """An installed distribution."""

    version: str  # version in its metadata
    folder: str  # entry of `sys.path` that contains it


@dataclass(frozen=True)
class Software:
    """Installed software."""

    python: tuple[int, int]  # version of the interpreter
    # name -> all copies of a distribution, in the order of `sys.path`; Python imports the first one
    packages: Mapping[str, tuple[Package, ...]]
    # mindswap_version, mindswap_folder: the running mindswap
    mindswap_version: str
    mindswap_folder: str
    cann_of_mindspore: tuple[str, ...] = ()  # CANN versions that the installed MindSpore supports; empty if not known
    cann: str = ""  # version of CANN; "" if not installed
    cann_folder: str = ""  # folder of CANN, even if it is not installed
    driver: str = ""  # version of the device driver; "" if not installed
    num_cards: int = 0  # devices of the machine
    has_switch: bool = False  # Python runs the hook for `MINDSWAP=1` at its start

    def version(self, name: str) -> str:
        """Return the version of the copy that Python imports; "" if there is none."""
        copies = self.packages.get(name, ())
        return copies[0].version if copies else ""


@dataclass(frozen=True)
class Machine:
    """Limits and resources of a machine. Sizes are in bytes."""

    memlock_bytes: int | None = None  # memory that a process may lock; None if unlimited
    host_bytes: int | None = None  # available host memory, within the limit of the container; None if unknown
    shm_bytes: int | None = None  # size of /dev/shm; None if unknown
    num_numa_nodes: int = 1  # NUMA nodes with memory
    num_allowed_nodes: int = 1  # NUMA nodes on which this process may run
    is_numa_balancing: bool = False  # the kernel migrates pages between NUMA nodes
    ports: frozenset[int] = frozenset()  # ports in use by a listening socket
    ephemeral_ports: tuple[int, int] | None = None  # first and last ephemeral port; None if unknown
    reserved_ports: frozenset[int] = frozenset()  # ports that the kernel does not assign as ephemeral ports
    interfaces: frozenset[str] = frozenset()  # names of the network interfaces
    cache_folder: str = ""  # cache folder of mindswap
    cache_problem: str = ""  # reason why the cache cannot be written; "" if it can
    cache_danger: str = ""  # reason why other users can change the cache; "" if they cannot
    cache_unfit: str = ""  # reason why the default folder is not used; "" if it is, or the user chose another one
    cache_bytes: int = 0  # size of the cache entries
    tmp_free_bytes: int | None = None  # free space for temporary files; None if unknown
    num_processors: int = 0  # processors on which this process may run; 0 if unknown
    num_installed_processors: int = 0  # processors of the machine; 0 if unknown


@dataclass(frozen=True)
class CheckedJob:
    """Facts that depend on a configuration."""

    file: str  # the configuration
    is_pynative: bool = False  # the configuration is of MindFormers 2.x
    num_errors: int = 0  # errors of `mindswap check`
    swaps: bool = False  # `swap_config.swap` is on
    disables_lazy_inline: bool = False  # `model.model_config.disable_lazy_inline` is on
    num_local_workers: int = 8  # workers on this machine
    swapped_bytes: int = 0  # upper bound of the swapped tensors of one worker in host memory
    loads_whole_checkpoint: bool = False  # every worker loads the full checkpoint (`auto_trans_ckpt`)
    checkpoint_bytes: int = 0  # size of the checkpoint files


@dataclass(frozen=True)
class MachineFacts:
    """Input of all diagnoses."""

    software: Software
    machine: Machine
    environ: Mapping[str, str] = field(default_factory=dict)  # environment variables
    job: CheckedJob | None = None  # facts of a configuration; None without one


# Requirements of a configuration, estimated without compiling it.

DEFAULT_NUM_WORKERS = 8
_CHECKPOINTS = (".ckpt", ".safetensors")


def gather_job(document: Document, environ: Mapping[str, str], num_cards: int) -> CheckedJob:
    """Gather facts of a training before it runs.

    Args:
        document: the configuration.
        environ: environment variables of the run.
        num_cards: devices of the machine; 0 assumes `DEFAULT_NUM_WORKERS`.
    """
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
    """Estimate the activations of one layer for one micro-batch in half precision: 34 s b h bytes.

    Table 2 of Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (arXiv:2205.05198),
    without the 5 a s^2 b of attention scores, which flash attention does not store.
    """
    return 34 * seq_length * batch_size * hidden_size // model_parallel


def _swapped_bytes(document: Document, step: StepSettings, policy: Policy | None, num_layers: int | None) -> int:
    """Return an upper bound: all activations of all swapped layers, for the micro-batches in flight on stage 0."""
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
    """Return the size of the checkpoint files in a folder, in bytes; the shards of all ranks are one checkpoint."""
    try:
        if path.is_file():
            return path.stat().st_size
        return sum(file.stat().st_size for file in path.rglob("*") if file.suffix in _CHECKPOINTS)
    except OSError:
        return 0
