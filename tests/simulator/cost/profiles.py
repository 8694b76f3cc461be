"""Profiles written by hand as MindSpore 2.9, torch_npu and CANN write them: columns and fields as those have them."""

import csv
import json
from pathlib import Path

# OpSummaryHeaders of mindspore/profiler/common/constant.py, renamed as ascend_kernel_details_viewer.py does.
KERNEL_COLUMNS = (
    "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State", "Accelerator Core", "Start Time(us)",
    "Duration(us)", "Wait Time(us)", "Block Num", "Mix Block Num", "HF32 Eligible", "Input Shapes",
    "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats", "Context ID",
)  # fmt: skip
# torch_npu of 2025 with a schedule: two columns in front, counters behind, other names for blocks.
TORCH_COLUMNS = (
    "Step Id", "Device_id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State", "Accelerator Core",
    "Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Dim", "Mix Block Dim", "HF32 Eligible", "Input Shapes",
    "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats", "Context ID",
    "aicore_time(us)", "aic_total_cycles", "aiv_time(us)", "aiv_total_cycles", "cube_utilization(%)",
)  # fmt: skip
LEVEL0_COLUMNS = (
    "Step Id", "Name", "Type", "Accelerator Core", "Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Dim",
)  # fmt: skip
# op_summary of msprof.
SUMMARY_COLUMNS = (
    "Device_id", "Model ID", "Task ID", "Stream ID", "Op Name", "OP Type", "OP State", "Task Type",
    "Task Start Time(us)", "Task Duration(us)", "Task Wait Time(us)", "Block Dim", "Mix Block Dim", "HF32 Eligible",
    "Input Shapes", "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats",
    "Context ID",
)  # fmt: skip
SUMMARY_NAMES = {
    "Name": "Op Name", "Type": "OP Type", "Accelerator Core": "Task Type", "Start Time(us)": "Task Start Time(us)",
    "Duration(us)": "Task Duration(us)",
}  # fmt: skip
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
OUTPUT_FOLDER = "ASCEND_PROFILER_OUTPUT"


def kernel(type_: str, duration_us: str, inputs: str, outputs: str, **others: str) -> dict[str, str]:
    """A row; tensors are written `FLOAT16 4096,128; FLOAT16 128`."""
    row = {"Name": f"Default/{type_}-op0/{type_}", "Type": type_, "Accelerator Core": "AI_CORE"}
    row |= {"Duration(us)": duration_us, "Start Time(us)": "1717575960208020.758\t"}
    for side, tensors in (("Input", inputs), ("Output", outputs)):
        parts = [part.strip().partition(" ") for part in tensors.split(";")] if tensors else []
        row[f"{side} Shapes"] = '"' + ";".join(dims for _, _, dims in parts) + '"'
        row[f"{side} Data Types"] = ";".join(dtype for dtype, _, _ in parts)
        row[f"{side} Formats"] = ";".join("ND" for _ in parts)
    return row | others


def on(core: str) -> dict[str, str]:
    """For `kernel`: what ran it."""
    return {"Accelerator Core": core}


def summary(row: dict[str, str]) -> dict[str, str]:
    """A row of `kernel` as msprof names its columns."""
    return {SUMMARY_NAMES.get(name, name): value for name, value in row.items()}


def copy(start_us: float, duration_us: float, size_bytes: int | None, operation: str = "device to host") -> dict:
    """A copy in the spelling of older versions; without a size at level 1."""
    args: dict = {
        "Model Id": 4294967295, "Task Type": "PCIE_DMA_SQE", "Physic Stream Id": 1, "Task Id": 0, "Batch Id": 0,
        "Subtask Id": 4294967295, "connection_id": 181,
    }  # fmt: skip
    if size_bytes is not None:
        bandwidth = size_bytes / max(duration_us, 1) / 1000
        args |= {"size(B)": size_bytes, "bandwidth(GB/s)": bandwidth, "operation": operation}
    place = {"pid": 10328512, "tid": 1, "ts": f"{1717575960000000 + start_us:.3f}", "dur": duration_us}
    return {"name": "MEMCPY_ASYNC", **place, "ph": "X", "args": args}


def new_copy(start_us: float, duration_us: float, size_bytes: int, direction: str = "device to host") -> dict:
    """A copy in the spelling of CANN 8."""
    event = copy(start_us, duration_us, None)
    event["args"] |= {"data size(Byte)": size_bytes, "memcpy direction": direction}
    return event


def collective(elapsed_ms: float, **links: tuple[float, float]) -> dict:
    """An operator of communication.json; link -> (MB, ms). SDMA repeats what HCCS has."""
    kinds = {"RDMA": (0, 0), "HCCS": (0, 0), "PCIE": (0, 0), "SIO": (0, 0), **links}
    kinds["SDMA"] = kinds["HCCS"]
    return {
        "Communication Time Info": {"Start Timestamp(us)": 1.5, "Elapse Time(ms)": elapsed_ms, "Transit Time(ms)": 0},
        "Communication Bandwidth Info": {
            kind: {"Transit Size(MB)": size, "Transit Time(ms)": time, "Bandwidth(GB/s)": 0, "Size Distribution": {}}
            for kind, (size, time) in kinds.items()
        },
    }


def write_csv(path: Path, columns: tuple[str, ...], rows: list[dict[str, str]]) -> None:
    """A table as the profiler writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns, restval="N/A")
        writer.writeheader()
        writer.writerows(rows)


def write_json(path: Path, data: object) -> None:
    """Anything as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


def write_trace(path: Path, events: list[dict]) -> None:
    """A list of events, as both profilers write it."""
    meta = {"name": "process_name", "pid": 10328512, "tid": 0, "ph": "M", "args": {"name": "Ascend Hardware"}}
    write_json(path, [meta, *events])


def write_profile(
    folder: Path,
    kernels: list[dict[str, str]],
    copies: list[dict] | None = None,
    steps: list[dict[str, str]] | None = None,
    rank: str = "host_1_20260101_ascend_ms",
    columns: tuple[str, ...] = KERNEL_COLUMNS,
) -> Path:
    """A profile of one rank; its folder is what mindspore.Profiler was given."""
    output = folder / rank / OUTPUT_FOLDER
    write_csv(output / "kernel_details.csv", columns, kernels)
    if copies is not None:
        write_trace(output / "trace_view.json", copies)
    if steps is not None:
        write_csv(output / "step_trace_time.csv", STEP_COLUMNS, steps)
    return output
