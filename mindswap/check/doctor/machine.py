"""Findings about limits and resources of the machine, with what the job needs of them where one is named."""

from collections.abc import Iterator

from mindswap.check.doctor.facts import Diagnosis, MachineFacts, error, warning
from mindswap.check.doctor.software import find_in_environment, find_in_software
from mindswap.config.problem import Level
from mindswap.config.step import DEFAULT_MASTER_PORT
from mindswap.units import format_bytes, format_count

# Docker gives 64 MiB. assumed: workers of a data set with python_multiprocessing hand over batches there.
MIN_SHM_BYTES = 1 << 30
# assumed: the least that makes sense for offloaded activations, where no configuration says how much it is.
MIN_MEMLOCK_BYTES = 1 << 30
MIN_TMP_BYTES = 1 << 30
FEW_PROCESSORS = 16  # MindSpore 2.9.0 orders a dry run otherwise where it sees 2, 3, 4 or 8, and the same from 16 on
# HCCL listens on 16 ports from HCCL_IF_BASE_PORT, by default 60000 (CANN: environment variables of HCCL).
HCCL_BASE_PORT, NUM_HCCL_PORTS = 60000, 16


def find_in_machine(facts: MachineFacts) -> Iterator[Diagnosis]:
    """Limits and devices of this machine."""
    machine, job = facts.machine, facts.job
    needed = max(MIN_MEMLOCK_BYTES, job.swapped_bytes if job else 0)
    if machine.memlock_bytes is not None and machine.memlock_bytes < needed:
        yield warning(
            "memlock",
            f"a process may lock {format_bytes(machine.memlock_bytes)} of memory; up to {format_bytes(needed)} are "
            "wanted",
            "copies to host memory are quick from pinned pages only; where they cannot be pinned they fail or crawl",
            "ulimit -l unlimited; for a container: docker run --ulimit memlock=-1",
        )
    if machine.shm_bytes is not None and machine.shm_bytes < MIN_SHM_BYTES:
        yield warning(
            "shared-memory",
            f"/dev/shm has {format_bytes(machine.shm_bytes)}",
            "workers of a data set hand over their batches there, and die of SIGBUS when it is full",
            "docker run --shm-size=16g, or: mount -o remount,size=16g /dev/shm",
        )
    if machine.num_allowed_nodes < machine.num_numa_nodes:
        yield warning(
            "numa",
            f"this process may run on {machine.num_allowed_nodes} of {machine.num_numa_nodes} NUMA nodes",
            "all swapped activations go to the memory of these nodes, and cards at other nodes copy across",
            "start without taskset, numactl or cpuset; msrun --bind_core=True places each worker beside its card",
        )
    if 0 < machine.num_processors < FEW_PROCESSORS:
        yield warning(
            "processors",
            f"this process may run on {format_count(machine.num_processors, 'processor')}",
            "MindSpore then copies activations out only when forward has ended: with swap a step may need more memory "
            "than without, and `mindswap dryrun` says what it needs on a server",
            f"give a training on Ascend {FEW_PROCESSORS} processors or more; start it without taskset or cpuset",
        )
    if machine.is_numa_balancing and facts.software.num_cards:
        yield warning(
            "numa-balancing",
            "the kernel moves pages between NUMA nodes (kernel.numa_balancing=1)",
            "workers stall while their pages move, each step as long as its slowest worker",
            "sysctl -w kernel.numa_balancing=0",
        )
    yield from _find_ports(facts)
    if machine.cache_problem:
        yield warning(
            "cache",
            f"{machine.cache_folder}: {machine.cache_problem}",
            "every command compiles its network anew, which takes seconds to minutes",
            "export MINDSWAP_CACHE=a folder that can be written",
        )
    if machine.tmp_free_bytes is not None and machine.tmp_free_bytes < MIN_TMP_BYTES:
        yield warning(
            "temporary-files",
            f"{format_bytes(machine.tmp_free_bytes)} are free for temporary files",
            "MindSpore writes graphs and kernels there while it compiles",
            "make room, or export TMPDIR=a folder with room",
        )


def _find_ports(facts: MachineFacts) -> Iterator[Diagnosis]:
    machine = facts.machine
    port = facts.job.master_port if facts.job else DEFAULT_MASTER_PORT
    if port in machine.ports:
        yield warning(
            "master-port",
            f"something listens on port {port}, the master port of msrun if none is given",
            "a second scheduler cannot start there",
            f"give --master_port another one; ss -ltnp shows who has {port}",
        )
    base = facts.environ.get("HCCL_IF_BASE_PORT", "")
    first = int(base) if base.isdecimal() and len(base) < 6 else HCCL_BASE_PORT
    wanted = range(first, first + NUM_HCCL_PORTS)
    taken = sorted(machine.ports.intersection(wanted))
    if taken:
        yield error(
            "hccl-ports",
            f"something listens on {', '.join(map(str, taken))}, of the ports {first} to {wanted[-1]} of HCCL",
            "workers that cannot listen there stop when communication starts",
            "end what listens there, or export HCCL_IF_BASE_PORT=the first of 16 free ports",
        )
    if machine.ephemeral_ports and facts.software.num_cards:
        low, high = machine.ephemeral_ports
        open_ports = [number for number in wanted if low <= number <= high and number not in machine.reserved_ports]
        if open_ports and not taken:
            yield warning(
                "hccl-ports-not-reserved",
                f"the kernel may give ports {open_ports[0]} to {open_ports[-1]}, which HCCL wants, to any connection",
                "now and then a start fails, and the next one does not",
                f"sysctl -w net.ipv4.ip_local_reserved_ports={first}-{wanted[-1]}",
            )


def find_in_job(facts: MachineFacts) -> Iterator[Diagnosis]:
    """Needs of the configuration: of this machine and of installed software."""
    job = facts.job
    if job is None:
        return
    if job.is_pynative:
        yield error(
            "pynative",
            f"{job.file} is a configuration of MindFormers 2.x in PyNative mode",
            "`mindswap run` hooks into graph mode; in PyNative mode MindFormers 2.x swaps by itself",
            "train it with MindFormers 2.x; `mindswap convert` writes the same policy for 1.9",
        )
    if job.num_errors:
        yield error(
            "configuration",
            f"{job.file} has {format_count(job.num_errors, 'error')}",
            "the training stops before it starts",
            f"mindswap check {job.file}",
        )
    if job.swaps and job.disables_lazy_inline:
        yield error(
            "lazy-inline-off",
            f"{job.file}: model.model_config.disable_lazy_inline is True",
            "outside of lazy_inline nothing is swapped, whatever the log says",
            "remove it; mindswap switches lazy_inline on",
        )
    yield from _find_host_memory(facts)


def _find_host_memory(facts: MachineFacts) -> Iterator[Diagnosis]:
    job, available = facts.job, facts.machine.host_bytes
    if job is None or available is None:
        return
    swapped = job.swapped_bytes * job.num_local_workers
    if swapped > available:
        yield warning(
            "host-memory-swap",
            f"{format_bytes(available)} of host memory are available; {job.num_local_workers} workers swap up to "
            f"{format_bytes(swapped)}, {format_bytes(job.swapped_bytes)} each",
            "a worker that finds no host memory stops, or the system kills it",
            "swap fewer layers, use fewer workers on a machine; `mindswap simulate` says how much it is",
        )
    loaded = job.checkpoint_bytes * job.num_local_workers if job.loads_whole_checkpoint else 0
    if loaded > available:
        yield warning(
            "host-memory-checkpoint",
            f"{format_bytes(available)} of host memory are available; with auto_trans_ckpt {job.num_local_workers} "
            f"workers load {format_bytes(job.checkpoint_bytes)} each, {format_bytes(loaded)} together",
            "the system kills workers while they load",
            "transform the checkpoint once and set auto_trans_ckpt: False, or lower transform_process_num",
        )


_CHECKS = (find_in_software, find_in_environment, find_in_machine, find_in_job)


def examine(facts: MachineFacts) -> tuple[Diagnosis, ...]:
    """Faults, errors first."""
    found = [finding for check in _CHECKS for finding in check(facts)]
    return tuple(sorted(found, key=lambda finding: finding.severity is not Level.ERROR))
