"""CPU replacements for parts of MindFormers without a CPU kernel.

They allow the documented cases to train without Ascend, at the same cell paths, and are active only with `mindswap:
{cpu_stand_ins: True}` in the YAML and device target CPU.
"""

import mindspore as ms
from mindformers.models.llama import llama_transformer
from mindformers.modules.flash_attention import FlashAttention
from mindformers.tools.register import MindFormerRegister
from mindformers.tools.register.register import MindFormerModuleType
from mindformers.wrapper import MFTrainOneStepCell
from mindspore import nn, ops


class CpuFlashAttention(nn.Cell):
    """Attention from single operators, with the signature of MindFormers' `FlashAttention`.

    Query, key and value have the shape (batch, heads, seq, head_dim), or (batch, seq, hidden) with
    `input_layout="BSH"`. The mask has the shape (batch, 1, seq, seq) or (seq, seq) and is 1 where attention is not
    allowed. The output has the layout of the query.
    """

    def __init__(self, head_num, scale_value=1.0, input_layout="BSH", **_):
        super().__init__()
        self.head_num = head_num
        self.is_flat = input_layout == "BSH"
        self.scale_value = scale_value
        self.shape = ops.Shape()
        self.reshape = ops.Reshape()
        self.transpose = ops.Transpose()
        self.scores_matmul = ops.BatchMatMul(transpose_b=True)
        self.output_matmul = ops.BatchMatMul()
        self.mul = ops.Mul()
        self.mask_mul = ops.Mul()
        self.mask_cast = ops.Cast()
        self.add = ops.Add()
        self.softmax = ops.Softmax()
        self.tile = ops.Tile()

    def shard(self, parallel_config):
        """Accept the parallel settings that MindFormers passes in semi-auto mode, and set no strategies."""
        return self

    def construct(self, query, key, value, attn_mask=None, *_):
        """Compute softmax(query key^T * scale + mask) value."""
        query_heads = self._split_heads(query)
        scores = self.scores_matmul(query_heads, self._match_heads(self._split_heads(key)))
        scores = self.mul(scores, self.scale_value)
        if attn_mask is not None:
            scores = self.add(scores, self.mask_mul(self.mask_cast(attn_mask, ms.float32), -10000.0))
        output = self.output_matmul(self.softmax(scores), self._match_heads(self._split_heads(value)))
        if not self.is_flat:
            return output
        return self.reshape(self.transpose(output, (0, 2, 1, 3)), self.shape(query))

    def _split_heads(self, x):
        if not self.is_flat:
            return x
        batch, seq, hidden = self.shape(x)
        return self.transpose(self.reshape(x, (batch, seq, self.head_num, hidden // self.head_num)), (0, 2, 1, 3))

    def _match_heads(self, x):
        """Repeat the key and value heads that several query heads share."""
        batch, num_heads, seq, head_dim = self.shape(x)
        if num_heads == self.head_num:
            return x
        x = self.reshape(x, (batch, num_heads, 1, seq * head_dim))
        x = self.tile(x, (1, 1, self.head_num // num_heads, 1))
        return self.reshape(x, (batch, self.head_num, seq, head_dim))


class CpuTrainOneStepCell(MFTrainOneStepCell):
    """MindFormers' training step without the overflow flag, which only an NPU has."""

    def process_loss_scale(self, overflow):
        """Keep the loss scale."""
        return overflow

    def get_overflow_status(self, status, compute_output):
        """Report no overflow, because a CPU has no such register."""
        return ms.Tensor(False)

    def start_overflow_check(self, pre_cond, compute_input):
        """Do nothing."""
        return ms.Tensor(False), compute_input


class CpuBarrier(ops.Primitive):
    """Barrier of a group by an AllReduce, needed to load a checkpoint under msrun."""

    def __init__(self, group="hccl_world_group"):
        super().__init__("CpuBarrier")
        self.all_reduce = ops.AllReduce(ops.ReduceOp.SUM, group)

    def __call__(self):
        """Wait until every worker of the group has called it."""
        return self.all_reduce(ms.Tensor([1.0], ms.float32)).asnumpy()


def replace_cpu_stand_ins(use_stand_ins: bool) -> None:
    """Let MindFormers build these cells if the YAML requests them, otherwise its own."""
    llama_transformer.FlashAttention = CpuFlashAttention if use_stand_ins else FlashAttention
    ops.operations.Barrier = CpuBarrier if use_stand_ins else ops.Barrier
    wrappers = MindFormerRegister.registry[MindFormerModuleType.WRAPPER]
    wrappers["MFTrainOneStepCell"] = CpuTrainOneStepCell if use_stand_ins else MFTrainOneStepCell
