"""Memory of a rank with FSDP and expert parallelism, computed from the dry run of one rank with everything.

Nothing of this runs: HyperParallel, which does it, is not on PyPI. Counted are

- weights, float32 weights, states and gradients, each divided by the ranks that share it: experts by those of expert
  parallelism and its own FSDP, all others by those of FSDP;
- weights that are all-gathered at once: of a layer and the next one, which MindFormers prefetches; of all layers if
  they stay gathered after forward (`reshard_after_forward_policy`, with pipeline stages by default);
- in backward the gradients of two layers before they are reduced: those of a layer are reduced while backward of the
  one below it runs.

Activations are those of the dry run. It is an upper limit. From the second micro-batch on all gradients are there; if
only one runs, those of a part of backward are counted as reduced if they were there when the part before began (see
`TrainerStep.backward_profile`), and where no parts were measured, none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mindswap.config.nodes import Document, is_int
from mindswap.errors import LaunchError
from mindswap.features.dryrun.trainer_config import num_data_parallel_ranks
from mindswap.features.dryrun.trainer_step import TrainerStep
from mindswap.units import format_count


@dataclass(frozen=True)
class Shards:
    """Ranks that share something.

    Attributes:
        num_cards: cards of the training.
        dense: ranks that share the weights of FSDP.
        experts: ranks that share the experts, of expert parallelism and of FSDP.
        expert_parallel: ranks of expert parallelism.
        is_resharded: whether gathered weights are freed after forward.
    """

    num_cards: int
    dense: int
    experts: int
    expert_parallel: int
    is_resharded: bool

    def __str__(self) -> str:
        """Return the division in words."""
        experts = f", expert_parallel {self.expert_parallel}" if self.expert_parallel > 1 else ""
        return f"FSDP over {self.dense}{experts}"


@dataclass(frozen=True)
class ShardedRank:
    """Memory of a rank in bytes.

    Attributes:
        shards: how it is divided.
        weight_bytes: its part of the weights.
        state_bytes: its part of float32 weights and states of the optimizer.
        gradient_bytes: its part of the gradients.
        gathered_bytes: all-gathered weights at once.
        max_peak_bytes: upper limit of the peak of the step.
    """

    shards: Shards
    weight_bytes: int
    state_bytes: int
    gradient_bytes: int
    gathered_bytes: int
    max_peak_bytes: int


def read_shards(document: Document, num_cards: int | None) -> Shards | None:
    """Return how a training with so many cards divides weights; None if it does not, or the cards are not known.

    Args:
        document: a configuration of MindFormers 2.x.
        num_cards: cards of the training.

    Raises:
        LaunchError: the parallel sizes do not fit the cards, or each other.
    """
    sizes = {name: document.count("parallelism", f"{name}_parallel") for name in ("tensor", "context", "pipeline")}
    experts = document.count("parallelism", "expert_parallel")
    if num_cards is None or num_cards == 1:  # one process divides nothing, and MindFormers asks for nothing
        return None
    data = num_data_parallel_ranks(document, num_cards)
    size = document.value("parallelism", "data_parallel_shard")
    # MindFormers takes the number of replicas from the size, rounded down, and then the size from it.
    shard = data // max(data // size, 1) if is_int(size) and size > 0 else data
    fsdp = shard * sizes["context"]
    region = fsdp * sizes["tensor"]
    if data % shard or region % experts:
        raise LaunchError(
            f"{document.location_of('parallelism')}: parallelism: with {num_cards} cards FSDP has {shard} of {data} "
            f"data parallel ranks, which does not fit them or expert_parallel {experts}\n"
            "    allowed: the ranks of FSDP divide the data parallel ranks, expert_parallel divides ranks of FSDP x "
            "context_parallel x tensor_parallel\n    fix:     --cards N, of the training, or data_parallel_shard: -1"
        )
    policy = document.value("parallelism", "reshard_after_forward_policy") or "default"
    shards = Shards(
        num_cards=num_cards,
        dense=_dense_ranks(document, fsdp),
        experts=region if experts > 1 else fsdp,
        expert_parallel=experts,
        is_resharded=policy == "always" or (policy == "default" and sizes["pipeline"] == 1),
    )
    return shards if shards.dense > 1 or shards.experts > 1 else None


def _dense_ranks(document: Document, fsdp: int) -> int:
    """Return the ranks that share what is not of experts: `dense_fsdp_shard_size`, by default all of FSDP.

    Args:
        document: a configuration of MindFormers 2.x.
        fsdp: ranks of FSDP, with those of context parallelism.

    Raises:
        LaunchError: MindFormers rejects it.
    """
    keys = "parallelism", "dense_fsdp_shard_size"
    node = document.get(*keys)
    size = fsdp if node is None or node.is_null else node.value
    if is_int(size) and 1 <= size <= fsdp and fsdp % size == 0:
        return int(size)
    allowed = ", ".join(str(count) for count in range(1, fsdp + 1) if fsdp % count == 0)
    raise LaunchError(
        f"{document.location_of(*keys)}: {'.'.join(keys)}: {size} does not divide the {format_count(fsdp, 'rank')} of "
        f"FSDP, data_parallel_shard x context_parallel\n"
        f"    allowed: {allowed}\n    fix:     remove the line: all ranks of FSDP then share these weights"
    )


def compute_rank(step: TrainerStep, shards: Shards, num_micro_batches: int) -> ShardedRank:
    """Return the memory of a rank.

    Args:
        step: the dry run of one rank with everything.
        shards: how a training divides it.
        num_micro_batches: micro-batches that the dry run ran.
    """
    expert_weights = step.expert_weight_bytes
    expert_states = step.expert_bytes - expert_weights
    gradient_permille = step.gradient_bytes * 1000 // max(1, step.trained_bytes)
    expert_gradients = min(step.gradient_bytes, expert_weights * gradient_permille // 1000)

    def part(total: int, experts: int) -> int:
        return -(-(total - experts) // shards.dense) - (-experts // shards.experts)

    weights = part(step.weight_bytes, expert_weights)
    states = part(step.state_bytes, expert_states)
    gradients = part(step.gradient_bytes, expert_gradients)
    units = [_gathered_bytes(experts, others, shards) for experts, others in step.unit_bytes]
    pair = max((sum(units[index : index + 2]) for index in range(len(units))), default=0)
    gathered = pair if shards.is_resharded else sum(units)
    saved = step.weight_bytes + step.state_bytes - weights - states
    peaks = step.phase_peaks
    forward, backward = peaks["forward"], peaks["backward"]
    if num_micro_batches > 1:
        forward -= step.gradient_bytes - gradients
        backward -= step.gradient_bytes - gradients - pair * gradient_permille // 1000
    else:
        backward -= _reduced_bytes(step, min(shards.dense, shards.experts))
    limits = (
        forward - saved + gathered,
        backward - saved + gathered,
        peaks["optimizer"] - saved - (step.gradient_bytes - gradients),
    )
    return ShardedRank(shards, weights, states, gradients, gathered, max(limits))


def highest_rank(stages: Sequence[TrainerStep], shards: Shards, num_micro_batches: int) -> ShardedRank:
    """Return the memory of a rank of the pipeline stage that needs most."""
    ranks = [compute_rank(step, shards, num_micro_batches) for step in stages]
    return max(ranks, key=lambda rank: rank.max_peak_bytes)


def rank_to_json(rank: ShardedRank) -> dict[str, Any]:
    """Return the memory of a rank as plain data; sizes in bytes."""
    return {**vars(rank), "shards": dict(vars(rank.shards)), "is_computed": True}


def _reduced_bytes(step: TrainerStep, num_shards: int) -> int:
    """Return by how much the peak of a first backward pass is lower if gradients of a layer are reduced in the next."""
    profile = step.backward_profile
    if not profile:
        return 0
    earlier = [0, *(gradients for _, gradients in profile)]  # those of the part before may not be reduced yet
    reduced = max(
        peak - (gradients - -(-gradients // num_shards)) for (peak, _), gradients in zip(profile, earlier, strict=False)
    )
    return max(peak for peak, _ in profile) - reduced


def _gathered_bytes(experts: int, others: int, shards: Shards) -> int:
    """Return what a rank holds of a unit's weights when they are gathered; 0 for what is not divided by FSDP."""
    of_experts = experts // shards.expert_parallel if shards.experts > shards.expert_parallel else 0
    return of_experts + (others if shards.dense > 1 else 0)
