"""Diagnoses of limits and resources of the machine, compared with the requirements of a job."""

from collections.abc import Iterator

from mindswap.config.device_memory import pinnable_bytes
from mindswap.config.problem import Level
from mindswap.config.step_settings import DEFAULT_MASTER_PORT
from mindswap.rules.machine.facts import Diagnosis, MachineFacts, diagnosis
from mindswap.rules.machine.software import find_in_environment, find_in_software
from mindswap.units import format_bytes, format_count

# Default of Docker: 64 MiB. assumed: dataset workers with python_multiprocessing pass batches through /dev/shm.
MIN_SHM_BYTES = 1 << 30
# assumed: minimum that is useful for offloaded activations if no configuration is given.
MIN_MEMLOCK_BYTES = 1 << 30
MIN_TMP_BYTES = 1 << 30
FEW_PROCESSORS = 16  # with 2, 3, 4 or 8 processors MindSpore 2.9.0 orders a dry run differently than with 16 or more
# HCCL listens on 16 ports from HCCL_IF_BASE_PORT, by default 60000 (CANN: environment variables of HCCL).
HCCL_BASE_PORT, NUM_HCCL_PORTS = 60000, 16


def find_in_machine(facts: MachineFacts) -> Iterator[Diagnosis]:
    """Yield diagnoses of limits and devices of the machine."""
    machine, job = facts.machine, facts.job
    needed = max(MIN_MEMLOCK_BYTES, job.swapped_bytes if job else 0)
    is_off = job is not None and not job.swaps and not job.is_pynative
    if not is_off and machine.memlock_bytes is not None and machine.memlock_bytes < needed:
        yield diagnosis("memlock", limit=format_bytes(machine.memlock_bytes), needed=format_bytes(needed))
    if machine.shm_bytes is not None and machine.shm_bytes < MIN_SHM_BYTES:
        yield diagnosis("shared-memory", size=format_bytes(machine.shm_bytes))
    if machine.num_allowed_nodes < machine.num_numa_nodes:
        yield diagnosis("numa", allowed=machine.num_allowed_nodes, nodes=machine.num_numa_nodes)
    if 0 < machine.num_processors < FEW_PROCESSORS:
        processors = format_count(machine.num_processors, "processor")
        is_bound = machine.num_processors < machine.num_installed_processors
        fix = "start it without taskset or cpuset" if is_bound else "a machine with more"
        yield diagnosis("processors", processors=processors, enough=FEW_PROCESSORS, fix=fix)
    if machine.is_numa_balancing and facts.software.num_cards:
        yield diagnosis("numa-balancing")
    yield from _find_ports(facts)
    if machine.cache_problem:
        yield diagnosis("cache", folder=machine.cache_folder, problem=machine.cache_problem)
    if machine.cache_danger:
        yield diagnosis("cache-not-private", folder=machine.cache_folder, danger=machine.cache_danger)
    if machine.cache_unfit:
        yield diagnosis("cache-elsewhere", folder=machine.cache_folder, reason=machine.cache_unfit)
    if machine.tmp_free_bytes is not None and machine.tmp_free_bytes < MIN_TMP_BYTES:
        yield diagnosis("temporary-files", free=format_bytes(machine.tmp_free_bytes))


def _find_ports(facts: MachineFacts) -> Iterator[Diagnosis]:
    machine = facts.machine
    if DEFAULT_MASTER_PORT in machine.ports:
        yield diagnosis("master-port", port=DEFAULT_MASTER_PORT)
    base = facts.environ.get("HCCL_IF_BASE_PORT", "")
    first = int(base) if base.isdecimal() and len(base) < 6 else HCCL_BASE_PORT
    hccl_ports = range(first, first + NUM_HCCL_PORTS)
    used_ports = sorted(machine.ports.intersection(hccl_ports))
    if used_ports:
        yield diagnosis("hccl-ports", taken=", ".join(map(str, used_ports)), first=first, last=hccl_ports[-1])
    if machine.ephemeral_ports and facts.software.num_cards:
        low, high = machine.ephemeral_ports
        unreserved_ports = [
            number for number in hccl_ports if low <= number <= high and number not in machine.reserved_ports
        ]
        if unreserved_ports and not used_ports:
            yield diagnosis(
                "hccl-ports-not-reserved",
                low=unreserved_ports[0],
                high=unreserved_ports[-1],
                first=first,
                last=hccl_ports[-1],
            )


def find_in_job(facts: MachineFacts) -> Iterator[Diagnosis]:
    """Yield diagnoses of the requirements of a job."""
    job = facts.job
    if job is None:
        return
    if job.is_pynative:
        yield diagnosis("pynative", file=job.file)
    if job.num_errors:
        yield diagnosis("configuration", file=job.file, errors=format_count(job.num_errors, "error"))
    if job.swaps and job.disables_lazy_inline:
        yield diagnosis("lazy-inline-off", file=job.file)
    loaded_bytes = job.checkpoint_bytes if job.loads_whole_checkpoint else 0
    for check, each_bytes in (("host-memory-swap", job.swapped_bytes), ("host-memory-checkpoint", loaded_bytes)):
        available, total = facts.machine.host_bytes, each_bytes * job.num_local_workers
        if available is not None and check == "host-memory-swap":
            available = pinnable_bytes(available)
        if available is not None and total > available:
            sizes = {"total": format_bytes(total), "each": format_bytes(each_bytes)}
            yield diagnosis(check, None, workers=job.num_local_workers, available=format_bytes(available), **sizes)


_CHECKS = (find_in_software, find_in_environment, find_in_machine, find_in_job)


def examine(facts: MachineFacts) -> tuple[Diagnosis, ...]:
    """Return all diagnoses, errors first."""
    findings = [finding for check in _CHECKS for finding in check(facts)]
    return tuple(sorted(findings, key=lambda finding: finding.severity is not Level.ERROR))
