#!/bin/bash
# A launch script of Megatron-LM, shortened: an example of `mindswap convert` in docs/recompute.md.
TP=2
PARALLEL_ARGS="--tensor-model-parallel-size $TP --pipeline-model-parallel-size 4"
RECOMPUTE_ARGS=(
    --recompute-granularity full
    --recompute-method block
    --recompute-num-layers 2
    --distribute-saved-activations
)
torchrun --nproc_per_node 8 pretrain_gpt.py \
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
    $PARALLEL_ARGS "${RECOMPUTE_ARGS[@]}" --bf16
