"""The other half of a comparison: the network without what is judged, compiled once for all policies."""

from dataclasses import replace
from typing import TYPE_CHECKING

from mindswap.config.rank import RankPlacement
from mindswap.document.source import load_document
from mindswap.policy.model import Policy
from mindswap.session.cache import GRAPH_CLASSES, POLICY_SECTIONS, asks_for_stand_ins, cached_result

if TYPE_CHECKING:
    from mindswap.adapters.mindformers import Capture

__all__ = ["capture_plain"]


def capture_plain(
    config_path: str,
    policy: Policy,
    judged: "Capture",
    placement: RankPlacement | None,
    use_cache: bool,
    with_tags: bool = False,
) -> "Capture":
    """The same layers of a network as one that was compiled, under a policy that is not judged.

    Only this half is kept: what a verdict is about is compiled anew for every answer.

    Args:
        config_path: MindFormers YAML.
        policy: what is the same on both sides, without swap.
        judged: the other side, which says which layers.
        placement: as of the other side.
        use_cache: False compiles again and keeps nothing.
        with_tags: as of `adapters.mindformers.capture`.

    Raises:
        GraphError: if the network cannot be built or compiled.
    """
    from mindswap.adapters.mindformers import Capture, capture

    document, sample = load_document(config_path), judged.sample
    found = cached_result(
        document,
        policy,
        (Capture, *GRAPH_CLASSES),
        lambda: capture(config_path, policy, sample, with_tags, placement),
        use_cache,
        without=POLICY_SECTIONS,
        ask="plain",
        indices=sample.indices,
        with_tags=with_tags,
        placement=repr(placement),
        stand_ins=asks_for_stand_ins(document),
    )
    return replace(found, sample=sample)
