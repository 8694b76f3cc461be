"""From a configuration to a model that can be simulated: shared by the commands that simulate."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from mindswap.adapters.installed import require_mindformers
from mindswap.adapters.quiet import quiet
from mindswap.check.check import CheckResult, check_document, require_num_layers
from mindswap.commands.caching import cached_result
from mindswap.config.rank import place_rank
from mindswap.config.step import read_step_settings
from mindswap.cost.calibration_file import load_measured
from mindswap.cost.device_file import DEFAULT_DEVICE, list_devices, load_device
from mindswap.cost.figures import EXAMPLES, OPTIONS
from mindswap.cost.hardware import Device
from mindswap.cost.settings import read_cost_settings
from mindswap.cost.table import CostTable
from mindswap.document.nodes import Document
from mindswap.document.problem import Level
from mindswap.document.source import load_document
from mindswap.errors import PolicyError, SimulationError
from mindswap.graph.model import Graph, Node, Saved, TensorType
from mindswap.graph.ranks.collectives import Collective
from mindswap.graph.sample import LayerSample
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.model import Policy
from mindswap.report.outside import describe_outside
from mindswap.simulate.captured import CapturedStep
from mindswap.simulate.step_model import SimulatedStep, StepModel
from mindswap.stage.expand import expand_stage_recompute

__all__ = [
    "POLICY_SECTIONS",
    "LoadedStep",
    "add_device_arguments",
    "device_overrides",
    "load_step",
    "outside_line",
    "policy_of",
]

# What a captured step is made of, for the cache.
STEP_CLASSES = (CapturedStep, LayerSample, CellNode, Graph, Node, Saved, TensorType, Collective)
# Options of the device that `--help` lists; the others are there all the same.
COMMON_OPTIONS = ("memory", "host_memory", "d2h", "h2d", "contended_fraction", "compute_fraction", "memory_fraction")
FIGURE_PREFIX = "figure_"
# Sections that do not change the step without swap and recompute, but for `mindswap: cpu_stand_ins`.
POLICY_SECTIONS = ("swap_config", "recompute_config", "mindswap")


@dataclass(frozen=True, eq=False)
class LoadedStep:
    """A configuration ready to be simulated.

    Attributes:
        document: the configuration.
        policy: what it asks for, in layer indices.
        model: the step under any policy.
        device: on what.
        known_layers: trees in which operator names of the configuration must be; None if there is no table of them.
    """

    document: Document
    policy: Policy
    model: StepModel
    device: Device
    known_layers: tuple[CellNode, ...] | None

    def simulate(self) -> SimulatedStep:
        """One step under the policy of the configuration.

        Raises:
            SimulationError: if it cannot be simulated, with the place of its recompute.
        """
        try:
            return self.model.simulate(self.policy)
        except SimulationError as error:
            section = self.document.get("recompute_config", "select_recompute")
            raise SimulationError(f"{section.location}: {error}" if section is not None else str(error)) from None


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """`--device` and an option for each figure of it."""
    group = parser.add_argument_group("device", "all figures can be replaced; `mindswap:` of CONFIG takes them too")
    group.add_argument("--device", metavar="NAME|FILE", help=f"{', '.join(list_devices())}, or a .yaml file")
    for name, figure in OPTIONS.items():
        meaning = f"most that may be used: {figure.meaning}" if name == "memory" else figure.meaning
        group.add_argument(
            f"--{name.replace('_', '-')}",
            dest=f"{FIGURE_PREFIX}{name}",
            metavar=EXAMPLES[figure.kind],
            help=meaning if name in COMMON_OPTIONS else argparse.SUPPRESS,
        )


def device_overrides(args: argparse.Namespace) -> dict[str, str]:
    """The figures that options replace."""
    found = {name: getattr(args, f"{FIGURE_PREFIX}{name}") for name in OPTIONS}
    return {name: text for name, text in found.items() if text is not None}


def load_step(
    config: str, device: str | None = None, overrides: dict[str, str] | None = None, use_cache: bool = True
) -> LoadedStep:
    """Capture the network of a configuration without its policy.

    Args:
        config: MindFormers YAML.
        device: name or file; default is what `mindswap:` of the configuration says.
        overrides: figures of the device to replace; they go before those of the configuration.
        use_cache: False compiles again and keeps nothing.

    Raises:
        PolicyError: if the configuration is wrong.
        GraphError: if the network cannot be built or compiled.
        CostError: if the device is not known.
    """
    document = load_document(config)
    checked = check_document(document, environ=dict(os.environ))
    policy = policy_of(document, checked)
    assert checked.num_layers is not None
    asked = read_cost_settings(document)
    if asked.problems:
        raise PolicyError(asked.problems)
    device = device or asked.device or DEFAULT_DEVICE
    figures = load_device(device, {**asked.overrides, **(overrides or {})})
    costs = CostTable(figures, load_measured(device))
    settings = read_step_settings(document)
    captured = _capture(config, document, checked.num_layers, use_cache)
    known_layers = checked.trees.layers if checked.trees is not None else None
    return LoadedStep(document, policy, StepModel(captured, costs, settings), figures, known_layers)


def outside_line(loaded: LoadedStep) -> str:
    """Device memory beside what MindSpore may use, in words; "" for none."""
    model, device = loaded.model, loaded.device
    left_bytes = device.memory_bytes - device.usable_memory_bytes
    return describe_outside(model.outside_bytes, model.communicators, left_bytes)


def policy_of(document: Document, checked: CheckResult) -> Policy:
    """What a configuration asks for in layer indices; with swap off what MindFormers makes of its recompute.

    Raises:
        PolicyError: if it is wrong.
    """
    if checked.policy is None or any(problem.level is Level.ERROR for problem in checked.problems):
        raise PolicyError(checked.problems)
    num_layers = require_num_layers(document, checked.num_layers)
    if checked.policy.is_swap_enabled:
        return checked.policy
    return expand_stage_recompute(document, num_layers).policy


def _capture(config: str, document: Document, num_layers: int, use_cache: bool) -> CapturedStep:
    path = str(Path(config).resolve())
    settings = read_step_settings(document)
    placement = None
    if settings.model_parallel * settings.context_parallel * settings.expert_parallel > 1:
        placement = place_rank(document, 0, num_layers)

    def make() -> CapturedStep:
        require_mindformers()
        with quiet():
            from mindswap.adapters.step import capture_step

            return capture_step(path, num_layers, placement)

    stand_ins = document.get("mindswap", "cpu_stand_ins")
    return cached_result(
        document,
        Policy(),
        STEP_CLASSES,
        make,
        use_cache,
        without=POLICY_SECTIONS,
        ask="step",
        stand_ins=stand_ins is not None and stand_ins.value is True,
    )
