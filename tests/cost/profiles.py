"""Profiles written by hand in the format of MindSpore 2.9 and CANN: columns and fields as their sources have them."""

import csv
import json
from pathlib import Path

# OpSummaryHeaders of mindspore/profiler/common/constant.py, renamed as ascend_kernel_details_viewer.py does.
KERNEL_COLUMNS = (
    "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State", "Accelerator Core", "Start Time(us)",
    "Duration(us)", "Wait Time(us)", "Block Num", "Mix Block Num", "HF32 Eligible", "Input Shapes",
    "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats", "Context ID",
)  # fmt: skip
# StepTraceTimeHeaders of ascend_step_trace_time_viewer.py.
STEP_COLUMNS = (
    "Step", "Computing", "Communication(Not Overlapped)", "Overlapped", "Communication", "Free", "Stage", "Bubble",
    "Communication(Not Overlapped and Exclude Receive)", "Preparing",
)  # fmt: skip
# TARGET_MEMORY_RECORD_HEADERS of ascend_memory_viewer.py.
MEMORY_COLUMNS = (
    "Component", "Timestamp(us)", "Total Allocated(MB)", "Total Reserved(MB)", "Total Active(MB)", "Device Type",
)  # fmt: skip
# block_csv of MindSpore's memory tracker; a comma ends each line.
BLOCK_COLUMNS = (
    "start_time_stamp", "end_time_stamp", "device_addr", "stream_id", "pool_type", "size", "actual_used_memory",
    "actual_peak_memory", "file_name", "line_num", "type", "producer_task", "task_name", "node_name",
)  # fmt: skip


def kernel(type_: str, duration_us: str, inputs: str, outputs: str, **others: str) -> dict[str, str]:
    """A row; tensors are written `FLOAT16 4096,128; FLOAT16 128`."""
    row = {"Name": f"Default/{type_}-op0/{type_}", "Type": type_, "Accelerator Core": "AI_CORE"}
    row |= {"Duration(us)": duration_us, "Start Time(us)": "1717575960208020.758\t"}
    for side, tensors in (("Input", inputs), ("Output", outputs)):
        parts = [part.strip().partition(" ") for part in tensors.split(";")] if tensors else []
        row[f"{side} Shapes"] = '"' + ";".join(dims for _, _, dims in parts) + '"'
        row[f"{side} Data Types"] = ";".join(dtype for dtype, _, _ in parts)
    return row | others


def copy(start_us: float, duration_us: float, size_bytes: int, operation: str = "device to host") -> dict:
    """An event of ascend_hardware_assembler.cpp."""
    args = {
        "Model Id": 4294967295, "Task Type": "PCIE_DMA_SQE", "Physic Stream Id": 1, "Task Id": 0, "Batch Id": 0,
        "Subtask Id": 4294967295, "connection_id": 181, "size(B)": size_bytes,
        "bandwidth(GB/s)": size_bytes / max(duration_us, 1) / 1000, "operation": operation,
    }  # fmt: skip
    place = {"pid": 10328512, "tid": 1, "ts": f"{1717575960000000 + start_us:.3f}", "dur": duration_us}
    return {"name": "MEMCPY_ASYNC", **place, "ph": "X", "args": args}


def write_csv(path: Path, columns: tuple[str, ...], rows: list[dict[str, str]]) -> None:
    """A table as the profiler writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns, restval="N/A")
        writer.writeheader()
        writer.writerows(rows)


def write_profile(
    folder: Path,
    kernels: list[dict[str, str]],
    copies: list[dict] | None = None,
    steps: list[dict[str, str]] | None = None,
    rank: str = "host_1_20260101_ascend_ms",
) -> Path:
    """A profile of one rank; its folder is what mindspore.Profiler was given."""
    output = folder / rank / "ASCEND_PROFILER_OUTPUT"
    write_csv(output / "kernel_details.csv", KERNEL_COLUMNS, kernels)
    if copies is not None:
        meta = {"name": "process_name", "pid": 10328512, "tid": 0, "ph": "M", "args": {"name": "Ascend Hardware"}}
        (output / "trace_view.json").write_text(json.dumps([meta, *copies]))
    if steps is not None:
        write_csv(output / "step_trace_time.csv", STEP_COLUMNS, steps)
    return output
