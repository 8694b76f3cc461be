"""Where a rank stands among the parallel splits of a configuration."""

from dataclasses import dataclass

from mindswap.config.nodes import Document
from mindswap.config.pipeline import read_pipeline
from mindswap.errors import GraphError

# `parallel.parallel_mode`, as MindFormers reads it: in these the strategies of the model are in force.
STRATEGY_MODES = (1, 2, "semi_auto_parallel", "auto_parallel")


@dataclass(frozen=True)
class RankPlacement:
    """One rank of a training."""

    rank: int  # number of the rank
    num_ranks: int  # ranks of the training
    # data_parallel, model_parallel, context_parallel, num_stages: parallel settings
    data_parallel: int
    model_parallel: int
    context_parallel: int
    num_stages: int
    has_seq_parallel: bool  # `use_seq_parallel` is on
    has_strategies: bool  # the model is cut by strategies; otherwise every rank has all of a micro-batch
    stage: int  # pipeline stage of the rank
    layers: tuple[int, ...]  # layers of the model on this stage, in order
    expert_parallel: int = 1  # ranks that share the experts
    expert_skew_permille: int = 1000  # tokens that the experts of the rank receive for 1000 that it sends out

    @property
    def num_stage_ranks(self) -> int:
        """Ranks of one pipeline stage."""
        return self.num_ranks // self.num_stages

    @property
    def is_last_stage(self) -> bool:
        """Head and loss are on the last stage."""
        return self.stage == self.num_stages - 1

    def describe(self) -> str:
        """One line for a title."""
        settings = f"data {self.data_parallel}, tensor {self.model_parallel}"
        settings += " with sequence parallel" if self.has_seq_parallel else ""
        settings += f", context {self.context_parallel}" if self.context_parallel > 1 else ""
        settings += f", experts {self.expert_parallel}" if self.expert_parallel > 1 else ""
        return f"rank {self.rank} of {self.num_ranks}, stage {self.stage} of {self.num_stages} (parallel: {settings})"


def place_rank(document: Document, rank: int, num_layers: int, expert_skew_permille: int = 1000) -> RankPlacement:
    """The place of a rank, counted from 0; MindSpore numbers the ranks stage by stage.

    Raises:
        GraphError: if there is no such rank, or the layers cannot be spread over the stages as asked.
    """
    data = document.count("parallel_config", "data_parallel")
    model = document.count("parallel_config", "model_parallel")
    context = document.count("parallel_config", "context_parallel")
    pipeline = read_pipeline(document)
    stage_ranks = data * model * context
    num_ranks = stage_ranks * pipeline.num_stages
    if not 0 <= rank < num_ranks:
        raise GraphError(
            f"there is no rank {rank}: data_parallel {data} x model_parallel {model} x context_parallel {context} "
            f"x pipeline_stage {pipeline.num_stages} gives ranks 0-{num_ranks - 1}"
        )
    stage = rank // stage_ranks
    layers = pipeline.stage_layers(stage, num_layers)
    if layers is None:
        raise GraphError(
            f"{num_layers} layers cannot be spread over pipeline_stage {pipeline.num_stages} x pp_interleave_num "
            f"{pipeline.num_chunks} with offset {pipeline.offset}"
        )
    if not layers:
        raise GraphError(f"stage {stage}, where rank {rank} is, has no layers")
    return RankPlacement(
        rank=rank,
        num_ranks=num_ranks,
        data_parallel=data,
        model_parallel=model,
        context_parallel=context,
        num_stages=pipeline.num_stages,
        has_seq_parallel=document.value("parallel_config", "use_seq_parallel") is True,
        has_strategies=document.value("parallel", "parallel_mode") in STRATEGY_MODES,
        stage=stage,
        layers=layers,
        expert_parallel=document.count("parallel_config", "expert_parallel"),
        expert_skew_permille=expert_skew_permille,
    )
