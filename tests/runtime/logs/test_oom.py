"""Out of memory in every form that MindSpore and CANN print.

The texts are put together from the sources: literals of the libraries of mindspore 2.9.0 (`strings`), the file of the
public repository mindspore-ai/mindspore named at each, and messages that users reported.
"""

import pytest

from mindswap.runtime.logs.oom import parse_oom
from tests.runtime.logs.samples import glog, info, scan

FORMS = [
    # ascend_two_pointer_mem_adapter.cc, MallocStaticDevMem: "#umsg#Framework Error Message:#umsg#" + text.
    (
        "Out of Memory!!! Request memory size: 33100113920B, Memory Statistic:",
        "memory pool of a graph",
        33100113920,
    ),
    # MindSpore 2.0: without the B.
    ("Out of Memory!!! Request memory size: 512, Memory Statistic:", "memory pool of a graph", 512),
    # actor_common.h, SET_OPCONTEXT_MEMORY_ALLOC_FAIL_BY_STRATEGY; raised as RuntimeError.
    (
        "RuntimeError: Device(id:0) memory isn't enough and alloc failed, kernel name: Default/MatMul-op7, "
        "alloc size: 301990400B.",
        "operator",
        301990400,
    ),
    # The same on CPU.
    (
        "RuntimeError: Memory isn't enough and alloc failed, kernel name: kernel_graph_0, alloc size: 64B.",
        "operator",
        64,
    ),
    (
        glog(
            "#umsg#Memory not enough:#umsg#Device(id:3) memory isn't enough and alloc failed, kernel name: "
            "model.layers.0.attention.wq.weight, alloc size: 33554432B.",
            "runtime/graph_scheduler/base/data_prepare_actor.cc:129] SyncTensorData",
        ),
        "operator",
        33554432,
    ),
    # ms_backend/runtime/graph_scheduler/base/move_to.cc: the copy back of an offloaded activation.
    (
        "RuntimeError: Allocate memory failed, maybe device memory(device id:0) isn't enough. Allocate size: 4096",
        "copy to the device",
        4096,
    ),
    (
        "RuntimeError: Malloc for kernel output failed, Memory isn't enough, node:Default/Mul-op1",
        "operator without a graph",
        None,
    ),
    # mindspore FAQ, "EE9999: On-Chip Video Memory Allocation Failure".
    (
        "[EXCEPTION] DEVICE(170414,fffe397fa1e0,python):2021-09-13-15:29:07.465.388 [mindspore/ccsrc/runtime/device/"
        "ascend/ascend_memory_manager.cc:62] MallocDeviceMemory] Malloc device memory failed, size[32212254720], "
        "ret[207001], Device 6 may be other processes occupying this card, check as: ps -ef|grep python",
        "device",
        32212254720,
    ),
    (
        "RuntimeError: Malloc device memory failed, free memory size is less than half of total memory size.Device 0 "
        "Device MOC total size:65464696832 Device MOC free size:3596279808 may be other processes occupying this card",
        "device",
        None,
    ),
    # ascend_memory_adapter.cc, HugeMemReserver.
    (glog("aclrtMalloc mem size[1073741824] fail, ret[207001]", "plugin/x.cc:1] Huge"), "device", 1073741824),
    # mem_dynamic_allocator.cc
    (
        glog(
            "Memory not enough: alloc size[0] is smaller than required size[1073741824].",
            "runtime/memory/mem_pool/mem_dynamic_allocator.cc:392] AddMemBlockAndMemBuf",
            "WARNING",
        ),
        "memory pool",
        1073741824,
    ),
    (
        "Memory not enough: current free memory size[0] is smaller than required size[241827840].",
        "memory pool",
        241827840,
    ),
    # The CPU backend under RLIMIT_DATA, as mindspore 2.9.0 printed it: first the system, then the pool, then the actor.
    (
        glog("malloc memory failed.", "plugin/cpu/res_manager/mem_manager/cpu_memory_pool.cc:76] AllocDeviceMem"),
        "host",
        None,
    ),
    (
        "[WARNING] ME(6379,7f032aab3b80,python):2026-11-21-03:44:42.598.615 [mindspore/ccsrc/runtime/hardware_abstract/"
        "device_context/device_context.cc:113] AllocateMemory] Allocate memory failed for size: 16",
        "device",
        16,
    ),
    # ge_memory_manager.cc
    ("RuntimeError: Out of memory, Alloc GE memory failed, size: 77", "graph engine", 77),
    ("Allocate memory failed, alloc size 123", "device", 123),
    # CANN 8: as in vllm-project/vllm-ascend; CANN 8.5: as in PKU-YuanGroup/Helios issue 62.
    ("EL0004: [PID: 28794] 2025-08-26-03:58:55.257.127 Failed to allocate memory.", "driver", None),
    (
        "[PID: 210907] 2026-04-09-21:56:40.384.694 Memory_Allocation_Failure(EL0004): Failed to allocate memory "
        "requested by GE module.",
        "driver",
        None,
    ),
    ("        malloc physical memory failed, runtime result = 207001[FUNC:ReportCallError]", "driver", None),
    ("EI0011: Failed to allocate [209715200] bytes of NPU memory.", "communication", 209715200),
    ("terminate called after throwing an instance of 'std::bad_alloc'", "host", None),
    ("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 3.2 GiB for an array", "host", None),
    ("MemoryError", "host", None),
    ("OSError: [Errno 12] Cannot allocate memory", "host", None),
]


@pytest.mark.parametrize(("line", "form", "size"), FORMS)
def test_form(line, form, size):
    event = parse_oom(line.strip())
    assert (event.form, event.requested_bytes) == (form, size)


@pytest.mark.parametrize(("line", "form", "size"), FORMS)
def test_the_scanner_finds_the_line_in_a_log(line, form, size):
    (event,) = scan(info("before") + line.rstrip("\n") + "\n" + info("after")).oom_events
    assert (event.form, event.requested_bytes) == (form, size)


@pytest.mark.parametrize(
    "line",
    [
        glog("Memory not enough: current free memory size[0] is smaller than required size[9].", "x.cc:1] C", "INFO"),
        glog("Call rtMalloc to allocate device memory Success, size: 1 bytes", "x.cc:1] M", "INFO"),
        glog(
            "Reserved memory size for other components(1) is less than recommend size(2), It may lead to Out Of Memory "
            "in HCCL or other components",
            "x.cc:1] I",
            "WARNING",
        ),
        "Please try to reduce 'batch_size' or check whether exists extra large shape. For more details, please "
        "refer to 'Out of Memory' at https://www.mindspore.cn .",
        "Device MOC memory size: 62420M",
        "",
    ],
)
def test_what_is_no_failure(line):
    assert parse_oom(line.strip()) is None


def test_what_the_pool_has_is_not_missing():
    """241827840 asked for, 41827840 there: 200000000 missing."""
    text = "Memory not enough: current free memory size[41827840] is smaller than required size[241827840]."
    assert parse_oom(text).missing_bytes == 200_000_000
    assert parse_oom("std::bad_alloc").missing_bytes is None


def test_a_number_without_end_is_no_size():
    assert parse_oom("Out of Memory!!! Request memory size: " + "9" * 5000).requested_bytes is None
