"""A training step as it was loaded, which plans and dry runs take."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mindswap.api.recorded import is_trace_path, read_trace
from mindswap.api.run import Run
from mindswap.config.nodes import Document
from mindswap.config.weight_sharding import has_one_turn
from mindswap.errors import SimulationError, require
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.model import Policy
from mindswap.simulator.cost.hardware import Device
from mindswap.simulator.step_model import StepModel
from mindswap.training.proof.derive import cut_policy
from mindswap.units import format_count


@dataclass(frozen=True, eq=False)
class LoadedStep:
    """A training step ready to be simulated: what it is, and one simulation of it.

    Attributes:
        document: the configuration; empty for a network without one.
        policy: what it asks for, in layer indices.
        model: the step under any policy.
        known_layers: trees in which operator names of the configuration must be; None if there is no table of them.
        path: the file of the configuration; None for a network without one.
    """

    document: Document
    policy: Policy
    model: StepModel
    known_layers: tuple[CellNode, ...] | None
    path: Path | None = None

    @property
    def device(self) -> Device:
        """On what."""
        return self.model.costs.device

    @property
    def title(self) -> str:
        """Name for reports."""
        return self.path.stem if self.path is not None else "network"

    def __repr__(self) -> str:
        layers, cards = len(self.model.captured.sample.layer_map), self.model.settings.num_cards
        return (
            f"<Step {self.title}: {format_count(layers, 'layer')}, {format_count(cards, 'card')}, {self.device.title}>"
        )

    def config_text(self) -> str:
        """The configuration as it is written, that of a recorded step too; bytes that are no UTF-8 as surrogates."""
        if self.path is None:
            return ""
        if is_trace_path(str(self.path)):
            return read_trace(str(self.path))[0].config
        return self.path.read_bytes().decode("utf-8", "surrogatepass")

    def simulate(self, policy: Policy | None = None, title: str = "") -> Run:
        """One step under a policy.

        Args:
            policy: in layer indices; default is that of the configuration.
            title: name for reports.

        Raises:
            SimulationError: if it cannot be simulated, with the place of the recompute in the configuration.
        """
        chosen = self.policy if policy is None else policy
        require("policy", chosen, Policy)
        model = self.with_swap().model if chosen.is_swap_enabled else self.model
        try:
            simulated = model.simulate(chosen)
        except SimulationError as error:
            section = self.document.get("recompute_config", "select_recompute") if policy is None else None
            raise SimulationError(f"{section.location}: {error}" if section is not None else str(error)) from None
        return Run(model, chosen, simulated, title or self.title)

    def short(self, kept: Sequence[int]) -> "LoadedStep":
        """The step of a model with fewer layers, each of which does what one of `kept` does; as a dry run makes it."""
        return replace(self, policy=cut_policy(self.policy, tuple(kept)), model=self.model.short(kept))

    def with_swap(self) -> "LoadedStep":
        """The step as it is compiled with swap enabled, with lazy_inline: other operators cast gathered weights."""
        sharding = self.model.settings.sharding
        is_other = type(self.model) is StepModel and sharding.num_ranks > 1 and has_one_turn(self.document)
        if not is_other or sharding.is_cast_behind:
            return self
        return _cast_behind(self)


@functools.lru_cache(maxsize=1)
def _cast_behind(step: LoadedStep) -> LoadedStep:
    """The step with weights cast behind their gather; made once, as its model keeps what it found."""
    settings = step.model.settings
    sharding = replace(settings.sharding, is_cast_behind=True)
    return replace(step, model=step.model.remade(settings=replace(settings, sharding=sharding)))
