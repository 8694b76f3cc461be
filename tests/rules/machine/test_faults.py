"""Faults planted in a computer made of folders, each found by its name; and nothing else is."""

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from mindswap.config.problem import Level
from mindswap.features.doctor.report import doctor_to_json, format_doctor
from mindswap.rules.machine.facts import CheckedJob, Diagnosis, MachineFacts, gather_job, layer_activation_bytes
from mindswap.rules.machine.probe import gather_machine, gather_software, host_memory
from mindswap.rules.machine.resources import examine, find_in_job
from mindswap.version import __version__
from tests.builders import document

ROOT = Path(__file__).parents[3]
PACKAGES = {
    "numpy": "1.26.4", "psutil": "7.2",
    "highspy": "1.15.1", "numba": "0.60", "jinja2": "3.1", "PyYAML": "6.0", "regex": "2024.5.15", "tqdm": "4.66",
    "mindspore": "2.9.0", "mindformers": "1.9.0", "mindswap": __version__,
}  # fmt: skip
CANN_CHECK = 'class AscendEnvChecker(EnvChecker):\n    def __init__(self):\n        self.version = ["8.2", "8.5"]\n'
TCP = "  sl  local_address rem_address   st\n"
CONFIG = """\
use_parallel: True
parallel_config: {data_parallel: 8, model_parallel: 1, pipeline_stage: 1}
trainer: {type: CausalLanguageModelingTrainer, model_name: llama2_7b}
runner_config: {batch_size: 1}
context: {memory_optimize_level: O0}
load_checkpoint: CHECKPOINT
auto_trans_ckpt: TRANS
model:
  arch: {type: LlamaForCausalLM}
  model_config: {type: LlamaConfig, num_layers: 32, hidden_size: 4096, seq_length: 4096, disable_lazy_inline: LAZY}
swap_config: {swap: True, layer_swap: [{backward_prefetch: 10, layers: SWAPPED}]}
"""


@dataclass
class Computer:
    """A healthy one with 8 cards, 4 NUMA nodes and 512 GiB, and a configuration that it can train."""

    root: Path
    packages: dict = field(default_factory=lambda: dict(PACKAGES))
    environ: dict = field(default_factory=dict)
    swapped: str = "[0, 1]"
    trans: str = "False"
    lazy: str = "False"
    config: str = CONFIG

    def __post_init__(self):
        self.write("usr/local/Ascend/ascend-toolkit/latest/compiler/version.info", "Version=8.2.0.1.220\n")
        self.write("usr/local/Ascend/driver/version.info", "Version=25.0.rc1\n")
        for card in range(8):
            self.write(f"dev/davinci{card}")
        self.write("dev/davinci_manager")
        (self.root / "dev/shm").mkdir()
        self.memlock("unlimited")
        self.memory(512 << 20)
        for node in range(4):
            self.write(f"sys/devices/system/node/node{node}/cpulist", f"{node * 48}-{node * 48 + 47}\n")
        self.write("proc/self/status", "Cpus_allowed_list:\t0-191\n")
        self.write("proc/sys/kernel/numa_balancing", "0\n")
        self.write("proc/net/tcp", TCP)
        self.write("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n")
        self.write("proc/sys/net/ipv4/ip_local_reserved_ports", "60000-60015\n")
        self.write("sys/class/net/eth0/mtu")
        self.write("site/mindspore/run_check/_check_version.py", CANN_CHECK)
        self.environ |= {"MINDSWAP_CACHE": str(self.root / "cache"), "TMPDIR": str(self.root)}

    def write(self, name, text=""):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def memlock(self, limit):
        self.write("proc/self/limits", f"Max locked memory         {limit}      {limit}      bytes\n")

    def memory(self, kib):
        self.write("proc/meminfo", f"MemTotal: {kib} kB\nMemAvailable:  {kib} kB\n")

    def listen(self, port):
        self.write("proc/net/tcp", TCP + f"   0: 00000000:{port:04X} 00000000:0000 0A 00000000:00000000\n")

    def add_copy(self, folder, name, version):
        self.write(f"{folder}/{name}-{version}.dist-info/METADATA", f"Name: {name}\nVersion: {version}\n")

    def facts(self, shm_bytes=None):
        for name, version in self.packages.items():
            self.add_copy("site", name, version)
        software = gather_software(self.environ, self.root, [str(self.root / "site"), str(self.root / "old")])
        text = self.config.replace("SWAPPED", self.swapped).replace("TRANS", self.trans).replace("LAZY", self.lazy)
        text = text.replace("CHECKPOINT", str(self.root / "ckpt"))
        return MachineFacts(
            software,
            gather_machine(self.environ, self.root),
            self.environ,
            gather_job(document(text), self.environ, software.num_cards),
        )


def wrong_pair(computer):
    computer.packages["mindspore"] = "2.10.0"


def no_mindformers(computer):
    del computer.packages["mindformers"]


def no_numba(computer):
    del computer.packages["numba"]


def wrong_cann(computer):
    computer.write("usr/local/Ascend/ascend-toolkit/latest/compiler/version.info", "Version=7.0.0.1\n")


def no_cann(computer):
    shutil.rmtree(computer.root / "usr/local/Ascend/ascend-toolkit")


def no_driver(computer):
    shutil.rmtree(computer.root / "usr/local/Ascend/driver")


def stale_plugin(computer):
    computer.add_copy("old", "mindswap", "0.0.7")


def switched_on_without_the_hook(computer):
    computer.environ["MINDSWAP"] = "1"


def lazy_inline_forbidden(computer):
    computer.environ["ENABLE_LAZY_INLINE_NO_PIPELINE"] = "0"


def lazy_inline_off(computer):
    computer.lazy = "True"


def of_a_worker(computer):
    computer.environ["MS_ROLE"] = "MS_WORKER"


def dry_run(computer):
    computer.environ["MS_SIMULATION_LEVEL"] = "0"


def no_such_interface(computer):
    computer.environ["HCCL_SOCKET_IFNAME"] = "ib0"


def short_timeout(computer):
    computer.environ["HCCL_CONNECT_TIMEOUT"] = "30"


def small_memlock(computer):
    computer.memlock(65536)


def memlock_below_what_is_swapped(computer):
    """2 layers of 34 x 4096 x 4096 bytes are 1.06 GiB."""
    computer.memlock(1 << 30)


def bound_to_one_node(computer):
    computer.write("proc/self/status", "Cpus_allowed_list:\t0-31,40\n")


def few_processors(computer):
    """Two, on any of its nodes."""
    computer.write("proc/self/status", "Cpus_allowed_list:\t0,48\n")
    for node in (2, 3):
        shutil.rmtree(computer.root / f"sys/devices/system/node/node{node}")


def pages_move(computer):
    computer.write("proc/sys/kernel/numa_balancing", "1\n")


def port_in_use(computer):
    computer.listen(8118)


def hccl_port_in_use(computer):
    computer.listen(60003)


def ports_not_reserved(computer):
    computer.write("proc/sys/net/ipv4/ip_local_reserved_ports", "60000-60007\n")


def cache_is_a_file(computer):
    computer.write("cache", "")


def cache_is_open(computer):
    (computer.root / "cache").mkdir(mode=0o700)
    (computer.root / "cache").chmod(0o777)


def home_is_open(computer):
    (computer.root / "home").mkdir()
    (computer.root / "home").chmod(0o777)
    del computer.environ["MINDSWAP_CACHE"]
    computer.environ["HOME"] = str(computer.root / "home")


def little_host_memory(computer):
    """8 workers swap 32 layers of 544 MiB: 136 GiB; of 160 GiB MindSpore pins 128."""
    computer.memory(160 << 20)
    computer.swapped = "True"


def little_memory_in_the_container(computer):
    """8 GiB are left; 8 workers swap 2 layers of 544 MiB each, 8.5 GiB."""
    computer.write("sys/fs/cgroup/memory.max", f"{10 << 30}\n")
    computer.write("sys/fs/cgroup/memory.current", f"{2 << 30}\n")


def checkpoint_too_large(computer):
    """8 x 2 GiB are more than 12 GiB; what is swapped is 8.5."""
    computer.trans = "True"
    computer.memory(12 << 20)
    (computer.root / "ckpt").mkdir()
    with (computer.root / "ckpt/model.safetensors").open("wb") as file:
        file.truncate(2 << 30)  # a hole: no disk is used


def of_mindformers_2(computer):
    computer.config = "training: {steps: 1}\nparallelism: {}\n"


def mistakes_in_the_configuration(computer):
    computer.config = CONFIG.replace("backward_prefetch: 10", "backward_prefetch: 0")


FAULTS = {
    wrong_pair: "version-pair", no_mindformers: "not-installed", no_numba: "packages", wrong_cann: "cann-version",
    no_cann: "cann-missing", no_driver: "driver-missing", stale_plugin: "stale-plugin",
    switched_on_without_the_hook: "switch-missing",
    lazy_inline_forbidden: "lazy-inline-env", lazy_inline_off: "lazy-inline-off", of_a_worker: "worker-variables",
    dry_run: "simulation-level", no_such_interface: "network-interface", short_timeout: "hccl-timeout",
    small_memlock: "memlock", memlock_below_what_is_swapped: "memlock", bound_to_one_node: "numa",
    few_processors: "processors",
    pages_move: "numa-balancing", port_in_use: "master-port", hccl_port_in_use: "hccl-ports",
    ports_not_reserved: "hccl-ports-not-reserved", cache_is_a_file: "cache", cache_is_open: "cache-not-private",
    home_is_open: "cache-elsewhere", little_host_memory: "host-memory-swap",
    little_memory_in_the_container: "host-memory-swap", checkpoint_too_large: "host-memory-checkpoint",
    of_mindformers_2: "pynative", mistakes_in_the_configuration: "configuration",
}  # fmt: skip


@pytest.fixture
def computer(tmp_path):
    return Computer(tmp_path)


# Of the machine that runs the tests: a folder has the size of its file system.
OF_THIS_MACHINE = {"shared-memory", "temporary-files", "python"}


def checks(facts):
    return [finding.check for finding in examine(facts) if finding.check not in OF_THIS_MACHINE]


def test_nothing_is_found_on_a_healthy_computer(computer):
    facts = computer.facts()
    assert checks(facts) == []
    assert (facts.software.cann, facts.software.driver, facts.software.num_cards) == ("8.2.0.1.220", "25.0.rc1", 8)
    assert facts.software.cann_of_mindspore == ("8.2", "8.5")
    assert (facts.machine.num_numa_nodes, facts.machine.host_bytes) == (4, 512 << 30)
    assert facts.job.swapped_bytes == 2 * 34 * 4096 * 4096 and facts.job.num_local_workers == 8


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found_and_nothing_else(computer, plant):
    plant(computer)
    facts = computer.facts()
    assert checks(facts) == [FAULTS[plant]]
    finding = next(one for one in examine(facts) if one.check == FAULTS[plant])
    assert finding.what and finding.why and finding.fix
    text = format_doctor(facts, [finding])
    assert f"{finding.severity.value}: {finding.what} [{finding.check}]" in text and f"fix:     {finding.fix}" in text
    data = doctor_to_json(facts, [finding])
    shown = data["findings"][0]
    assert (shown["check"], shown["severity"]) == (finding.check, finding.severity.value)


def test_all_faults_at_once(computer):
    """Those that do not exclude each other, errors first."""
    together = [wrong_pair, wrong_cann, stale_plugin, lazy_inline_forbidden, lazy_inline_off, of_a_worker, dry_run,
                no_such_interface, short_timeout, small_memlock, bound_to_one_node, pages_move, port_in_use,
                cache_is_a_file, little_host_memory]  # fmt: skip
    for plant in together:
        plant(computer)
    facts = computer.facts()
    assert len(together) == 15 and set(checks(facts)) == {FAULTS[plant] for plant in together}
    severities = [finding.severity for finding in examine(facts)]
    assert severities == sorted(severities, key=lambda severity: severity is Level.WARNING)


def test_a_small_shared_memory(computer):
    facts = computer.facts()
    small = replace(facts, machine=replace(facts.machine, shm_bytes=64 << 20))
    assert "shared-memory" in [finding.check for finding in examine(small)]


@pytest.mark.parametrize(
    ("limit", "used", "stat"),
    [
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ],
)
def test_the_cache_of_files_of_a_container_is_free(computer, limit, used, stat):
    """10 GiB, 9 in use, 6 of them cache that nobody uses: 7."""
    computer.write(f"sys/fs/cgroup/{limit}", f"{10 << 30}\n")
    computer.write(f"sys/fs/cgroup/{used}", f"{9 << 30}\n")
    assert host_memory(computer.root) == 1 << 30
    name = "total_inactive_file" if "/" in stat else "inactive_file"
    computer.write(f"sys/fs/cgroup/{stat}", f"anon {3 << 30}\nactive_file 5\n{name} {6 << 30}\n")
    assert host_memory(computer.root) == 7 << 30


def test_activations_of_a_layer_of_llama2_7b():
    """34 x 4096 tokens x 4096: 544 MiB; over 8 tensor parallel ranks 68."""
    assert layer_activation_bytes(4096, 1, 4096, 1) == 544 << 20
    assert layer_activation_bytes(4096, 1, 4096, 8) == 68 << 20


def test_one_error_of_a_configuration_is_one(computer):
    facts = computer.facts()
    found = find_in_job(replace(facts, job=CheckedJob("a.yaml", num_errors=1)))
    assert [finding.what for finding in found] == ["a.yaml has 1 error"]


def test_control_characters_of_a_file_name_do_not_reach_the_terminal(computer):
    facts = computer.facts()
    finding = Diagnosis("configuration", Level.ERROR, "esc\x1b[31m.yaml has 5 errors", "why", "mindswap check \x07")
    text = format_doctor(facts, [finding])
    assert "\\x1b[31m.yaml" in text and "\x1b" not in text and "\x07" not in text


def test_the_size_of_the_cache_is_said(computer):
    computer.write(f"cache/{64 * '0'}.entry", "x" * 1536)
    facts = computer.facts()
    assert f"cache: 1.5 KiB of at most 2.0 GiB in {computer.root}/cache" in format_doctor(facts, ())
    assert doctor_to_json(facts, ())["machine"]["cache_bytes"] == 1536


def test_a_small_limit_of_locked_memory_is_no_finding_with_swap_off(computer):
    small_memlock(computer)
    assert "memlock" in checks(computer.facts())
    computer.config = CONFIG.replace("swap: True", "swap: False")
    assert "memlock" not in checks(computer.facts())


@pytest.mark.parametrize(
    ("present", "advice"), [("0-1", "a machine with more"), ("0-191", "without taskset or cpuset")]
)
def test_few_processors_are_the_machine_or_a_limit(computer, present, advice):
    few_processors(computer)
    computer.write("sys/devices/system/cpu/present", f"{present}\n")
    (found,) = [finding for finding in examine(computer.facts()) if finding.check == "processors"]
    assert advice in found.fix
