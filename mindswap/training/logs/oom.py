"""How MindSpore and CANN say that memory ran out.

MindSpore's texts are those of the libraries in the wheel of mindspore 2.9.0 (`strings`), CANN's are
from its list of error codes (hiascend.com, "maintenref/troubleshooting") and public reports.
"""

import re

from mindswap.training.logs.model import OomEvent

MAX_TEXT = 300
HOST = "host"  # memory of the host, not of the device
# What ran out and how a line says it, behind the place where it is printed; a group `size` holds the bytes asked for, a
# group `free` those there were. The first that matches counts; every line they match must contain a needle of
# `scan.NEEDLES`.
FORMS = (
    # plugin/ascend/res_manager/mem_manager/ascend_two_pointer_mem_adapter.cc: MallocStaticDevMem, MallocDynamicDevMem
    ("memory pool of a graph", r"Out of Memory!!! Request memory size: (?P<size>\d+)"),
    # actor_common.h: SetOpContextMemoryAllocFail ('Device(id:0) memory isn't ...'; on CPU 'Memory isn't ...'),
    # data_prepare_actor.cc, output_actor.cc; libmindspore_{ms,ge}_backend.so
    ("operator", r"[Mm]emory isn't enough and alloc failed.*?alloc size: ?(?P<size>\d+)"),
    # ms_backend/runtime/graph_scheduler/base/move_to.cc
    (
        "copy to the device",
        r"Allocate memory failed, maybe device memory\(device id:\d+\) isn't enough\. Allocate "
        r"size: (?P<size>\d+)",
    ),
    # libmindspore_pynative_utils.so
    ("operator without a graph", r"Malloc for kernel (?:in|out)put failed, Memory isn't enough"),
    # plugin/ascend/res_manager/mem_manager/ascend_memory_adapter.cc: MallocFromRts
    ("device", r"(?<!rtMallocAlign32 to allocate )Malloc(?:Align32)? device memory failed(?:, size\[(?P<size>\d+)\])?"),
    # plugin/ascend/res_manager/mem_manager/ascend_memory_adapter.cc; 207001 is ACL_ERROR_RT_MEMORY_ALLOCATION
    ("device", r"rtMalloc mem size\[(?P<size>\d+)\] fail, ret\[207001\]"),
    # runtime/memory/mem_pool/mem_dynamic_allocator.cc: AddMemBlockAndMemBuf, CalMemBlockAllocSize
    (
        "memory pool",
        r"Memory not enough: (?:alloc|current free memory) size\[(?P<free>\d+)B?\] is smaller "
        r"than required size\[(?P<size>\d+)",
    ),
    # backend/ge_backend/executor/ge_memory_manager.cc
    ("graph engine", r"Out of memory, Alloc GE memory failed, size: (?P<size>\d+)"),
    # libmindspore_ge_backend.so
    ("graph engine", r"AllocFeatureMemory error, memory not enough, memory size: ?(?P<size>\d+)"),
    # device_context.cc: AllocateMemory ('for size'), libmindspore_ms_backend.so, libmindspore_pynative_utils.so,
    # libmindspore_ge_backend.so
    ("device", r"Allocate memory failed(?:(?:, (?:alloc(?:ate)? |memory )| for )size:? ?(?P<size>\d+))?"),
    # libmindspore_ascend_res_manager.so
    ("virtual memory", r"Malloc physical memory failed, return code"),
    # CANN, EI0011 Resource_Error_Insufficient_Device_Memory
    ("communication", r"Failed to allocate \[(?P<size>\d+)\] bytes of NPU memory"),
    # CANN, EL0004 Memory_Allocation_Failure, EL0019 Resource_Error_Insufficient_Device_Memory
    ("driver", r"\bEL0004\b|\bEL0019\b|Failed to allocate memory(?: requested by \w+ module)?\."),
    # CANN, acl log_inner.cpp
    ("driver", r"malloc physical memory failed, runtime result = 207001"),
    # C++
    ("host", r"std::bad_alloc"),
    # Python
    ("host", r"\w*MemoryError(?::|\s*$)"),
    # errno 12 of Linux
    ("host", r"Cannot allocate memory"),
    # libmindspore_cpu.so, libmindspore_hardware_abstract.so, _c_dataengine
    ("host", r"[Mm]alloc memory failed(?:: size (?P<size>\d+))?|Memory malloc failed|memory malloc failed"),
)


def parse_oom(line: str) -> OomEvent | None:
    """The event a line speaks of; None for none, and for lines of level INFO or DEBUG.

    The memory pool tries twice and logs its first failure at level INFO.
    """
    if line.startswith(("[INFO]", "[DEBUG]")) or " - INFO - " in line or " - DEBUG - " in line:
        return None
    for name, pattern in FORMS:
        if match := re.search(pattern, line):
            text = line[match.start() :].strip()  # without time and process, so that workers compare equal
            return OomEvent(
                name,
                text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " ...",
                _size(match, "size"),
                name == HOST,
                _size(match, "free"),
            )
    return None


def _size(match: re.Match[str], group: str) -> int | None:
    """The bytes of a group; a line can be cut or damaged: a number no memory ever had is no size."""
    digits = match.groupdict().get(group)
    return int(digits) if digits and len(digits) < 16 else None
