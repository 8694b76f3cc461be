"""Tables of a dry run as mindspore 2.9.0 writes them, made small."""

from pathlib import Path

import pytest

from mindswap.errors import LaunchError
from mindswap.features.dryrun.backend import last_operator
from mindswap.features.dryrun.memory_pool import read_rank
from mindswap.simulator.memory_parts import MemoryPart

LAYER = "Default/network-LlamaForCausalLM/model-LlamaModel/layers-CellList/1-LLamaDecodeLayer"
KIB = 2**10
BLOCKS = [  # start, end, size in KiB, type, node_name, user_tasks
    (0, 2**63 - 1, 100, "Weight", "model.layers.1.wq.weight", "4"),
    (0, 2**63 - 1, 200, "Weight", "adam_m.model.layers.1.wq.weight", ""),
    (0, 2**63 - 1, 9999, "", "", ""),  # the pool's own
    (2, 21, 1000, "Kernel", f"{LAYER}/attention-LLamaAttention/wq-Linear/MatMul-op0", "20"),
    (4, 30, 400, "Kernel", "Default/AllGather-op3", "8-20"),
    (8, 22, 60, "Kernel", "Default/Cast-op4", "20"),
    (6, 9, 50, "Kernel", f"{LAYER}/attention-LLamaAttention/Softmax-op0", ""),
    (20, 40, 700, "Kernel", f"Gradients/{LAYER}/attention-LLamaAttention/wq-Linear/Grad_MatMul/MatMul-op1", "24"),
]
TASKS = [
    (2, f"{LAYER}/attention-LLamaAttention/wq-Linear/MatMul-op0"),
    (4, "Default/AllGather-op3"),
    (6, f"{LAYER}/attention-LLamaAttention/Softmax-op0"),
    (8, "Default/Cast-op4"),
    (20, f"Gradients/{LAYER}/attention-LLamaAttention/wq-Linear/Grad_MatMul/MatMul-op1"),
    (24, f"Gradients/{LAYER}/Grad__MirrorOperator/ReduceScatter-op0"),
]


@pytest.fixture
def run(tmp_path):
    tracker = tmp_path / "tracker" / "rank_0"
    tracker.mkdir(parents=True)
    head = "start_time_stamp,end_time_stamp,stream_id,size,type,node_name,user_tasks,last_user_task,python_stack,\n"
    rows = (
        f"{s},{e},0,{size * KIB},{kind},{name},{{{uses}}},{uses.rpartition('-')[2]},File:a|File:b,\n"
        for s, e, size, kind, name, uses in BLOCKS
    )
    (tracker / "memory_block.csv").write_text(head + "".join(rows))
    rows = (f"{tick},7_{name},{name[:20]},kernel_graph0,,,,\n" for tick, name in TASKS)
    head = "time_stamp,task_name,node_name,graph_name,file_name,line_num,python_stack,\n"
    (tracker / "task.csv").write_text(head + "".join(rows))
    (tmp_path / "rank_0").mkdir()
    (tmp_path / "rank_0" / "execute_order.csv").write_text(
        "index,node_name,logic_id,stream_id,node_info,event_id,group\n"
        f'"1","{LAYER}/MoveTo-op0","1","3","@g:C{{[0]: ValueNode<Primitive> MoveTo, [1]: x, [2]: ValueNode<StringImm> '
        'CPU}","",""\n'
        f'"2","{LAYER}/MoveTo-op1","2","4","@g:C{{[0]: ValueNode<Primitive> MoveTo, [1]: x, [2]: ValueNode<StringImm> '
        'Ascend}","",""\n'
    )
    (tmp_path / "log").write_text(
        "Used peak memory usage (without fragments): 3M\nActual peak memory usage (with fragments): 4M\n"
    )
    return tmp_path


def test_peak_and_what_is_live_there(run):
    found = read_rank(run, 0, 1.0)
    assert (found.used_peak_bytes, found.actual_peak_bytes) == (3 << 20, 4 << 20)
    # tick 20: 100 + 200 + 1000 + 400 + 60 + 700; the pool's own block counts nowhere
    assert max(live_bytes for _, live_bytes in found.curve) == 2460 * KIB
    assert found.peak_tick == 20
    assert {part: size // KIB for part, size in found.part_bytes().items() if size} == {
        MemoryPart.WEIGHTS: 100,
        MemoryPart.OPTIMIZER_STATES: 200,
        MemoryPart.GATHERED_WEIGHTS: 460,  # the AllGather and the cast of it
        MemoryPart.GRADIENTS: 700,  # ReduceScatter reads it
        MemoryPart.SAVED_ACTIVATIONS: 1000,
    }


def test_names_of_a_block(run):
    block = next(block for block in read_rank(run, 0, 1.0).blocks if block.size_bytes == 1000 * KIB)
    assert block.operator == "MatMul"
    assert block.cell == (1, "attention-LLamaAttention/wq-Linear")


def test_copies_in_order(run):
    found = read_rank(run, 0, 1.0)
    assert [kernel.name[-7:] for kernel in found.offload_kernels] == ["eTo-op0"]
    assert [(kernel.name[-3:], kernel.stream) for kernel in found.prefetch_kernels] == [("op1", 4)]


def test_the_last_operator_of_a_crash(run):
    assert last_operator(run) == TASKS[-1][1][:20]


def test_no_figures(run):
    Path(run / "log").write_text("RuntimeError: no\n")
    with pytest.raises(LaunchError, match=r"no peak of memory: RuntimeError: no\n.*log:"):
        read_rank(run, 0, 1.0)
