"""Parts of blocks by the names and reads of operators, in steps as mindspore 2.9.0 runs them, made small."""

import sys
from typing import NamedTuple

import pytest

from mindswap.features.dryrun.block_roles import find_parts
from mindswap.features.dryrun.memory_pool import DryRun, PoolBlock
from mindswap.simulator.memory_parts import MemoryPart

NET = "Default/network-LlamaForCausalLM"
MODEL = f"{NET}/model-LlamaModel"
LAYERS = f"{MODEL}/layers-CellList"
KIB = 2**10


class Op(NamedTuple):
    """An operator, named for its output."""

    name: str
    reads: tuple[str, ...] = ()


def parts_of(ops: list[Op], parameters: tuple[str, ...] = (), constants: tuple[str, ...] = ()) -> dict[str, str]:
    """Part of each block: parameters and constants, and one output of each operator."""
    ticks = {op.name: 10 * (number + 1) for number, op in enumerate(ops)}
    kinds = {**dict.fromkeys(parameters, "Weight"), **dict.fromkeys(constants, "ConstantValue")}
    blocks = []
    for name in ("inputs0", *kinds, *ticks):
        uses = tuple(ticks[op.name] for op in ops if name in op.reads)
        start = ticks.get(name, 1) - 1
        end = sys.maxsize if name in kinds else max((start + 1, *uses)) + 1
        blocks.append(PoolBlock(start, end, 8 * KIB, kinds.get(name, "Kernel"), name, 0, max(uses, default=-1), uses))
    parts = find_parts(blocks, {tick: name for name, tick in ticks.items()})
    return {block.name: part.title for block, part in zip(blocks[1:], parts[1:], strict=True)}


EMBEDDING = f"{MODEL}/tok_embeddings-LlamaEmbedding/Gather-op0"
HEAD = f"{NET}/lm_head-Linear/MatMul-op0"
SOFTMAX = "Default/GraphKernel_Sub_Exp_fusion-op0"
LOSS_GRADIENT = f"Gradients/{NET}/loss-CrossEntropyLoss/Grad_Log/Mul-op0"
HEAD_GRADIENT = f"Gradients/{NET}/lm_head-Linear/Grad_MatMul/MatMul-op1"
HEAD_INPUT_GRADIENT = f"Gradients/{NET}/lm_head-Linear/Grad_MatMul/MatMul-op2"


def layer(number: int, operator: str, prefix: str = "") -> str:
    """Name of an operator of a layer."""
    return f"{prefix}{LAYERS}/{number}-LLamaDecodeLayer/{operator}"


def step(*inside: Op, last: str, backward: tuple[Op, ...] = (), closing: tuple[Op, ...] = ()) -> list[Op]:
    """A step around operators of layers; `last` is the output of the last layer."""
    return [
        Op(EMBEDDING, ("inputs0", "weight.embedding")),
        *inside,
        Op(HEAD, (last, "weight.head")),
        Op(SOFTMAX, (HEAD,)),
        Op(f"{NET}/loss-CrossEntropyLoss/Log-op0", (SOFTMAX,)),
        Op(LOSS_GRADIENT, (SOFTMAX,)),
        Op(HEAD_GRADIENT, (LOSS_GRADIENT, last)),
        Op(HEAD_INPUT_GRADIENT, (LOSS_GRADIENT, "weight.head")),
        *backward,
        *closing,
    ]


def test_parameters_by_their_names():
    names = ("wq.weight", "adam_m.wq.weight", "adam_v.wq.weight", "accu_grads.wq.weight")
    assert list(parts_of([], names, ("Default/data-0",)).values()) == [
        "weights", "optimizer states", "optimizer states", "accumulated gradients", "constants",
    ]  # fmt: skip


def test_the_loss_is_head_and_loss_in_forward_and_backward_with_or_without_cells():
    out = layer(0, "ffn/Mul-op0")
    parts = parts_of(step(Op(out, (EMBEDDING,)), last=out), ("weight.head", "weight.embedding"))
    assert [parts[name] for name in (HEAD, SOFTMAX, LOSS_GRADIENT)] == ["loss"] * 3
    assert parts[out] == "saved activations"


def test_gathers_of_weights_and_casts_are_gathered_weights_and_those_of_activations_are_not():
    gather, cast, wide = "Default/AllGather-op0", "Default/Cast-op0", layer(0, "attention/wq-Linear/AllGather-op1")
    out, hidden = layer(0, "attention/wq-Linear/MatMul-op1"), layer(0, "attention/Reshape-op0")
    ops = step(
        Op(gather, ("wq.weight",)), Op(cast, (gather,)), Op(wide, (EMBEDDING,)), Op(out, (wide, cast)),
        Op(hidden, (out,)), last=hidden,
        backward=(Op(layer(0, "attention/Grad_MatMul/MatMul-op2", "Gradients/"), (HEAD_INPUT_GRADIENT, cast)),),
    )  # fmt: skip
    parts = parts_of(ops, ("wq.weight", "weight.head", "weight.embedding"))
    assert (parts[gather], parts[cast]) == ("gathered weights", "gathered weights")
    assert (parts[wide], parts[out]) == ("communication", "temporaries")
    saved = [*ops, Op(layer(0, "attention/Grad_MatMul/MatMul-op3", "Gradients/"), (HEAD_INPUT_GRADIENT, wide))]
    assert parts_of(saved, ("wq.weight", "weight.head", "weight.embedding"))[wide] == "saved activations"


def test_recomputed_operators_are_told_from_those_of_forward_with_the_same_prefix():
    first, boundary = layer(0, "ffn/w1/MatMul-op0", "recompute_"), "Default/GraphKernel_Add_Cast_fusion-op0"
    again, fused = layer(0, "ffn/w1/MatMul-op3", "recompute_"), "Default/GraphKernel_SiLU-op1"
    gradient = layer(0, "ffn/w1/Grad_MatMul/MatMul-op4", "Gradients/recompute_")
    ops = step(
        Op(first, (EMBEDDING, "w1.weight")), Op(boundary, (first,)), last=boundary,
        backward=(Op(again, (EMBEDDING, "w1.weight")), Op(fused, (again,)), Op(gradient, (HEAD_INPUT_GRADIENT, fused))),
    )  # fmt: skip
    parts = parts_of(ops, ("w1.weight", "weight.head", "weight.embedding"))
    assert (parts[first], parts[boundary]) == ("temporaries", "saved activations")
    assert parts[EMBEDDING] == "saved activations"
    assert (parts[again], parts[fused]) == ("recomputed activations", "recomputed activations")
    assert (parts[gradient], parts[HEAD_INPUT_GRADIENT]) == ("activation gradients", "loss")


def test_gradients_are_accumulated_reduced_or_scaled_and_the_rest_after_backward_is_of_the_optimizer():
    out = layer(0, "ffn/Mul-op0")
    cast, reduced, scaled = "Default/Cast-op9", "Default/ReduceScatter-op0", "Default/GraphKernel_Cast_Mul_fusion-op3"
    copy, product = "Default/TensorMove-op7", "Default/optimizer-AdamW/Mul-op2"
    ops = step(
        Op(out, (EMBEDDING,)), last=out,
        backward=(
            Op("Default/GraphKernel_AssignAdd-op0", (HEAD_GRADIENT, "accu_grads.head")),
            Op(cast, (HEAD_INPUT_GRADIENT,)),
            Op(reduced, (cast,)),
            Op(layer(0, "ffn/Grad_Mul/Mul-op2", "Gradients/"), (HEAD_INPUT_GRADIENT, out)),
        ),
        closing=(
            Op(scaled, (reduced,)),
            Op(copy, ("adam_m.head",)),
            Op(product, (scaled,)),
            Op("Default/optimizer-AdamW/Assign-op2", (product, copy, scaled, "weight.head")),
        ),
    )  # fmt: skip
    parts = parts_of(ops, ("weight.head", "weight.embedding", "accu_grads.head", "adam_m.head"))
    assert [parts[name] for name in (HEAD_GRADIENT, cast, reduced, scaled)] == ["gradients"] * 4
    assert (parts[copy], parts[product]) == ("optimizer temporaries", "optimizer temporaries")


def test_gradients_that_are_reduced_while_others_are_scaled_are_gradients():
    out, scale = layer(0, "ffn/Mul-op0"), "Default/GraphKernel_Cast_Mul_Mul_ReduceSum_split-op0"
    late = f"Gradients/{NET}/lm_head-Linear/Grad_AllGather/ReduceScatter-op1"
    first, second = layer(0, "ffn/Grad_MatMul/MatMul-op2", "Gradients/"), "Default/Cast-op9"
    ops = step(
        Op(out, (EMBEDDING,)), last=out,
        backward=(Op(first, (HEAD_INPUT_GRADIENT, out)), Op(second, (HEAD_GRADIENT,))),
        closing=(Op(scale, (first,)), Op(late, (second,)), Op("Default/GraphKernel_Mul_fusion-op0", (late,))),
    )  # fmt: skip
    parts = parts_of(ops, ("weight.head", "weight.embedding"))
    assert [parts[name] for name in (first, scale, HEAD_GRADIENT, second, late)] == ["gradients"] * 5


def test_copies_come_from_saved_activations_and_are_prefetched():
    out, offload, prefetch = (layer(0, f"ffn/{name}") for name in ("Mul-op0", "MoveTo-op0", "MoveTo-op1"))
    ops = step(
        Op(out, (EMBEDDING,)), Op(offload, (out,)), last=out,
        backward=(Op(prefetch, (offload,)), Op(layer(0, "Grad_Mul/Mul-op1", "Gradients/"), (prefetch,))),
    )  # fmt: skip
    parts = parts_of(ops, ("weight.head", "weight.embedding"))
    assert (parts[out], parts[prefetch]) == ("saved activations", "prefetched copies")


def test_what_is_made_of_constants_alone_is_constant():
    mask, out = f"{MODEL}/casual_mask-LowerTriangularMask/ExpandDims-op0", layer(0, "ffn/Mul-op0")
    ops = [Op(mask, ("Default/data-0",)), *step(Op(out, (EMBEDDING, mask)), last=out)]
    parts = parts_of(ops, ("weight.head", "weight.embedding"), ("Default/data-0",))
    assert (parts[mask], parts["Default/data-0"]) == ("constants", "constants")


def test_what_follows_a_received_tensor_is_no_weight():
    received, out = "Default/Receive-op0", layer(2, "attention_norm/RmsNorm-op0")
    ops = step(Op(received, ("norm.weight",)), Op(out, (received, "norm.weight")), last=out)
    parts = parts_of(ops, ("norm.weight", "weight.head", "weight.embedding"))
    assert (parts[received], parts[out]) == ("communication", "saved activations")


@pytest.mark.parametrize("tick", [30, 45, 61])
def test_parts_add_up_to_what_is_live(tick):
    blocks = tuple(
        PoolBlock(start, start + 25, 5 * KIB + start, "Kernel", f"{NET}/Op-op{start}", 0, -1) for start in range(60)
    )
    run = DryRun(0, 0, 0, blocks, {start: f"{NET}/Op-op{start}" for start in range(60)}, (), (), 0.0)
    assert sum(run.part_bytes(tick).values()) == sum(block.size_bytes for block in run.live_blocks(tick))
    assert list(run.part_bytes()) == list(MemoryPart)
