"""Logs as the workers write them: lines of real runs (tools/demo.py), shortened, and of the sources of MindSpore."""

from mindswap.runtime.logs.oom import WorkerLog
from mindswap.runtime.logs.scan import LogScanner, Search, search

GLOG = "[{level}] {module}(20300,7f5b5fa1db80,python):2026-11-21-01:12:40.447.304 [mindspore/ccsrc/{file}] "
# Case 3 of the specification.
EXPECTED = (
    ("Set op_swap at layer 0: .attention, value=20",),
    ("Set op_swap at layer 1: .attention, value=20, .feed_forward, value=15",),
    ("Set op_swap at layer 2: .attention, value=20, .feed_forward, value=15",),
    ("Set op_swap at layer 3: .attention, value=10",),
)
LAZY_INLINE = "mindswap: lazy_inline is on, as activation swap needs it."
CPU_NOTE = (
    "mindswap: the CPU backend cannot execute lazy_inline, so nothing is offloaded in this run; `mindswap verify` ..."
)
STEP = (
    "{{ Epoch:[  1/  1], step:[{step:5}/   40], loss:[3.087671/3.839126], per_step_time: 309ms, lr: 0.002, overflow "
    "cond: False, loss_scale: 1.0, global_norm: [0.8075195], train_throughput_per_npu: 0.036T"
)
OVER = ".........Training Over!............."
# AscendMemAdapter::DeInitialize, with MS_MEMORY_STATISTIC=1.
STATISTICS = (
    GLOG.format(level="WARNING", module="DEVICE", file="plugin/ascend/res_manager/mem_manager/x.cc:190] DeInitialize")
    + """Ascend Memory Adapter deinitialize success, statistics:
Device MOC memory size: 62420M
MindSpore Used memory size: 58196M
MindSpore memory base address: 0x12c1c0000000
Used peak memory usage (without fragments): {used}M
Actual peak memory usage (with fragments): {actual}M
"""
)
OFFLOAD_WARNING = (
    GLOG.format(level="WARNING", module="PARALLEL", file="frontend/parallel/pass/offload_activation.cc:270] Warning")
    + "Offload does not take effect outside the scope of the lazy_inline Cell. NOde: @construct:CNode_1{[0]: ...}, "
)


def info(message: str, file: str = "/work/main/mindswap/adapters/graph/apply.py:47", level: str = "INFO") -> str:
    """A line of MindFormers' logger, as it stands in worker_0.log."""
    return f"2026-11-21 01:12:51,271 - mindformers/output/log[{file}] - {level} - {message}\n"


def glog(message: str, file: str, level: str = "ERROR", module: str = "RUNTIME_FRAMEWORK") -> str:
    """A line of MindSpore's C++ logger."""
    return GLOG.format(level=level, module=module, file=file) + message + "\n"


START = [
    "[WARNING] ME(20300:140030423194496,MainProcess):2026-11-21-01:12:30.110.000 [mindspore/graph/x.py:59] Module\n",
    info("The input config swap_config is empty.", "mindformers/tools/register/template.py:84", "WARNING"),
    glog("Connection 13 source: 127.0.0.1:42832", "cluster/rpc/tcp/tcp_comm.cc:485] Connect", "WARNING", "DISTRIBUTED"),
]
SET = [info(line) for lines in EXPECTED for line in lines]
TRAIN = [
    info("Network Parameters: 0 M.", "mindformers/trainer/base_trainer.py:800"),
    *(info(STEP.format(step=step), "mindformers/core/callback/callback.py:747") for step in (1, 20, 40)),
]
END = [info(OVER, "mindformers/trainer/base_trainer.py:1689")]


def log_text(
    set_lines: list[str] | None = None, mark: str = LAZY_INLINE, train: list[str] | None = None, end: list[str] = END
) -> str:
    """The log of one worker."""
    lines = SET if set_lines is None else set_lines
    return "".join([*START, *lines, info(mark), *(TRAIN if train is None else train), *end])


def scan(text: str | bytes, worker: int = 0, block_bytes: int = 1 << 16, find: Search = search) -> WorkerLog:
    """What the scanner finds in a text, given to it in blocks."""
    data = text.encode() if isinstance(text, str) else text
    scanner = LogScanner(find)
    for start in range(0, len(data), block_bytes):
        scanner.feed(data[start : start + block_bytes])
    return scanner.finish(worker, len(data))
