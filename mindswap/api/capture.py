"""The step of a configuration without its policy: compiled once, and kept."""

from pathlib import Path

from mindswap.adapters.quiet import quiet
from mindswap.api.cache import GRAPH_CLASSES, POLICY_SECTIONS, asks_for_stand_ins, cached_result
from mindswap.check.doctor.software import require_mindformers
from mindswap.config.nodes import Document
from mindswap.config.rank import place_rank
from mindswap.config.step import StepSettings
from mindswap.errors import GraphError
from mindswap.policy.model import Policy
from mindswap.simulator.captured import CapturedStep

# What a captured step is made of, for the cache.
STEP_CLASSES = (CapturedStep, *GRAPH_CLASSES)
# Every rank of experts receives as many tokens as it sends, in thousandths; and the most that can be asked for.
BALANCED, MAX_SKEW = 1000, 1_000_000


def capture_config(
    config: str,
    document: Document,
    settings: StepSettings,
    num_layers: int,
    skew_permille: int,
    use_cache: bool,
) -> CapturedStep:
    """The step of a rank, which are all alike; arguments as of `load_step`.

    Raises:
        GraphError: if the network cannot be built or compiled.
    """
    path = str(Path(config).resolve())
    # In one part, every rank of a stage is like one that has the whole model.
    placement = place_rank(document, 0, num_layers, skew_permille) if settings.num_parts > 1 else None

    def make() -> CapturedStep:
        require_mindformers()
        with quiet():
            from mindswap.adapters.step import capture_step

            return capture_step(path, num_layers, placement)

    return cached_result(
        document,
        Policy(),
        STEP_CLASSES,
        make,
        use_cache,
        without=POLICY_SECTIONS,
        ask="step",
        **({"expert_skew": skew_permille} if skew_permille != BALANCED else {}),
        stand_ins=asks_for_stand_ins(document),
    )


def read_skew(text: str | None) -> int:
    """How uneven tokens go to the ranks of experts, in thousandths, of a text such as `"1.5"`; None is balanced.

    Raises:
        GraphError: if it is no number from 1 on.
    """
    if text is None:
        return BALANCED
    try:
        skew = round(float(text) * BALANCED)
    except (ValueError, OverflowError):
        skew = 0
    if not BALANCED <= skew <= MAX_SKEW:
        raise GraphError(
            f"--expert-skew: {text} is not how many times as many tokens the busiest rank receives\n"
            f"    allowed: a number from 1 (balanced) to {MAX_SKEW // BALANCED}"
        )
    return skew
