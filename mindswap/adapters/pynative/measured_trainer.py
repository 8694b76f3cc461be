"""The trainer of MindFormers 2.x in one process, with memory measured by phase. Imported after `hyper_parallel`."""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import mindspore as ms
from mindformers.parallel_core import transformer_config
from mindformers.pynative.distributed.activation_checkpoint import apply_ac
from mindformers.pynative.trainer import Trainer
from mindspore import nn

from mindswap.adapters.pynative.applied_paths import AppliedPaths
from mindswap.adapters.pynative.backward_profile import BackwardProfile
from mindswap.adapters.pynative.hyper_parallel_stand_in.applied import applied
from mindswap.adapters.pynative.hyper_parallel_stand_in.pipeline import Schedule1F1B
from mindswap.adapters.pynative.hyper_parallel_stand_in.swap import Moved, SwapManager, moved
from mindswap.adapters.pynative.hyper_parallel_stand_in.wrappers import show_wrapped_cells
from mindswap.adapters.pynative.layers_2x import find_gpt_model, indices_of_layers, layers_of
from mindswap.adapters.versions import replaced

PHASES = ("forward", "backward", "optimizer")


@dataclass
class MeasuredMemory:
    """Device memory of a step in bytes.

    Attributes:
        before_bytes: allocated before the step.
        peaks: highest memory of each phase, over all micro-batches.
        kept_bytes: allocated at the end of forward beyond the begin of the same micro-batch, highest; in a pipeline
            stage the sum over the micro-batches in flight.
        gradient_bytes: allocated after the last backward beyond the begin of the step.
        reserved_bytes: memory that the pool has taken at most, with fragments.
        moved: swapped bytes.
    """

    before_bytes: int
    peaks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    kept_bytes: int = 0
    gradient_bytes: int = 0
    reserved_bytes: int = 0
    moved: Moved = field(default_factory=Moved)

    def to_data(self) -> dict[str, Any]:
        """Return the sizes as plain data."""
        names = ("before_bytes", "peaks", "kept_bytes", "gradient_bytes", "reserved_bytes")
        return {name: getattr(self, name) for name in names}


class MeasuredTrainer(Trainer):
    """The trainer of MindFormers, which applies swap and recompute also in one process, and measures memory.

    Args:
        config: configuration of MindFormers 2.x.
        train_dataset: the samples.

    Attributes:
        steps: memory of each step so far.
        added_by_layer: memory that the forward of each layer allocates beyond what it frees, in bytes.
        added_by_cell: the same for each cell of each layer, by name.
        weight_bytes: size of the network's parameters.
        trained_bytes: size of those that are trained.
        state_bytes: size of the optimizer's parameters: float32 weights and states.
        expert_bytes: size of the parameters of experts, with those of the optimizer.
        expert_weight_bytes: size of the parameters of experts, without those of the optimizer.
        unit_bytes: size of the parameters of experts, and of others, by what FSDP gathers together: before the layers,
            of each layer, after them.
        backward_profile: parts of the first backward pass; without any unless its `measure` is called.
    """

    def __init__(self, config: dict[str, Any], train_dataset: Any):
        self.steps: list[MeasuredMemory] = []
        self.added_by_layer: list[int] = []
        self.added_by_cell: list[dict[str, int]] = []
        self.backward_profile = BackwardProfile()
        super().__init__(config, train_dataset=train_dataset)
        network = {id(weight): weight for model in self.model for weight in model.get_parameters()}
        states = {id(weight): weight for weight in _parameters_of(self.optimizer) if id(weight) not in network}
        self.weight_bytes = _size_bytes(network.values())
        self.state_bytes = _size_bytes(states.values())
        self.trained_bytes = _size_bytes(weight for weight in network.values() if weight.requires_grad)
        self.expert_weight_bytes, _ = _expert_sizes(network.values())
        self.expert_bytes = self.expert_weight_bytes + _expert_sizes(states.values())[0]
        self.unit_bytes = [_expert_sizes(unit) for model in self.model for unit in _units_of(model)]
        if isinstance(self.schedule, Schedule1F1B):
            for layer in layers_of(self.model[0]):
                self._measure_layer(layer)
            self._measure_passes(self.schedule.stage)

    def _create_model(self, model: Any, model_config: Any) -> Any:
        # In a dry run of graph mode experts get equal numbers of tokens, so MindFormers wants the sequence to be a
        # multiple of them. The PyNative model does not ask whether this is a dry run.
        with replaced(transformer_config, os=SimpleNamespace(environ={})):
            model = super()._create_model(model, model_config)
        if self.enable_parallel:  # MindFormers builds the stages, and applies recompute to them
            return model
        config, gpt_model = self.config, find_gpt_model(model)
        names = [(weight, weight.name) for weight in model.get_parameters()]
        apply_ac(
            gpt_model.decoder,
            config.recompute,
            config.recompute_comm,
            config.swap,
            config.parallelism.pipeline_parallel,
            mtp_block=getattr(gpt_model, "mtp", None),
        )
        show_wrapped_cells()
        # The stand-in wraps a cell in place; assigning it to its parent gives equal names to weights of all layers.
        for weight, name in names:
            weight.name = name
        for layer in layers_of(model):
            self._measure_layer(layer)
        return model

    def first_batch(self) -> Any:
        """Return the first batch, prepared for `run_passes` instead of `train`."""
        self._register_grad_hooks()
        for model in self.model:
            model.set_train(True)
        self.steps.append(MeasuredMemory(0))
        return self.get_batch(self._create_dataset_iterator(self.train_dataset))

    def run_passes(self, batch: Any) -> None:
        """Run forward and backward of one micro-batch."""
        super()._forward_backward(self.model, batch)

    def _measure_layer(self, layer: nn.Cell) -> None:
        """Measure what the forward of a layer and of its cells adds."""
        added: dict[str, int] = {}
        self.added_by_cell.append(added)
        for name, cell in layer.name_cells().items():
            _measure_first_call(cell, functools.partial(added.__setitem__, name))
        _measure_first_call(layer, self.added_by_layer.append)

    @property
    def layer_indices(self) -> tuple[int, ...]:
        """Layers of a pipeline stage in the full model; empty without stages."""
        if self.schedule is None:
            return ()
        (network,) = self.model
        return indices_of_layers(network, find_gpt_model(network).config.num_layers)

    def applied_to_data(self) -> dict[str, Any]:
        """Return what the wrappers for swap and recompute did in the last step, as plain data."""
        (network,) = self.model
        paths = AppliedPaths(layers_of(network))
        return {"wrappers": paths.wrappers_to_data(), "layer_copies": paths.copies_to_data()}

    def training_step(self, step: int | None = None) -> Any:
        """Train one step, and measure it."""
        return self._measured(lambda: super(MeasuredTrainer, self).training_step(step))

    def _measured(self, run: Callable[[], Any]) -> Any:
        _reset()
        memory = MeasuredMemory(ms.runtime.memory_allocated())
        self.steps.append(memory)
        vars(moved).update(vars(Moved()))
        applied.reset()
        SwapManager().reset_copies()
        result = run()
        self._end_phase("optimizer")
        memory.moved = replace(moved)
        memory.reserved_bytes = ms.runtime.max_memory_reserved()
        return result

    def compute_loss(self, model: Any, inputs: Any) -> Any:
        """Run the forward pass, and measure what it keeps."""
        before_bytes = ms.runtime.memory_allocated()
        loss = super().compute_loss(model, inputs)
        self._end_phase("forward")
        memory = self.steps[-1]
        memory.kept_bytes = max(memory.kept_bytes, ms.runtime.memory_allocated() - before_bytes)
        return loss

    def compute_pp_loss(self, inputs: Any) -> Any:
        """Run the passes of a pipeline stage, and measure the gradients after them."""
        loss = super().compute_pp_loss(inputs)
        self._end_phase("backward")
        memory = self.steps[-1]
        memory.peaks["forward"] = memory.peaks["forward"] or memory.peaks["backward"]  # passes of HyperParallel itself
        memory.gradient_bytes = ms.runtime.memory_allocated() - memory.before_bytes
        return loss

    def _measure_passes(self, stage: Any) -> None:
        """Measure each forward and backward pass of a pipeline stage.

        Args:
            stage: a stage of the stand-in for HyperParallel; its methods are replaced.
        """
        run_forward, run_backward = stage.forward_one_chunk, stage.backward_one_chunk
        kept_bytes: dict[int, int] = {}  # of each micro-batch in flight

        def forward(micro_index: int, *arguments: Any) -> Any:
            before_bytes = ms.runtime.memory_allocated()
            output = run_forward(micro_index, *arguments)
            self._end_phase("forward")
            kept_bytes[micro_index] = ms.runtime.memory_allocated() - before_bytes
            memory = self.steps[-1]
            memory.kept_bytes = max(memory.kept_bytes, sum(kept_bytes.values()))
            return output

        def backward(micro_index: int) -> None:
            run_backward(micro_index)
            self._end_phase("backward")
            del kept_bytes[micro_index]

        stage.forward_one_chunk, stage.backward_one_chunk = forward, backward

    def training_pp_step(self) -> Any:
        """Train one step of a pipeline stage, and measure it."""
        return self._measured(super().training_pp_step)

    def _forward_backward(self, model: Any, inputs: Any) -> Any:
        loss = super()._forward_backward(model, inputs)
        self.backward_profile.end()
        self._end_phase("backward")
        self.steps[-1].gradient_bytes = ms.runtime.memory_allocated() - self.steps[-1].before_bytes
        return loss

    def _end_phase(self, phase: str) -> None:
        ms.runtime.synchronize()
        peaks = self.steps[-1].peaks
        peaks[phase] = max(peaks[phase], ms.runtime.max_memory_allocated())
        _reset()


def _measure_first_call(cell: nn.Cell, note: Callable[[int], None]) -> None:
    """Note what the first forward of a cell adds to the memory in bytes; only the first, because that waits."""
    sizes: list[int] = []

    def measure(*arguments: Any) -> None:
        if len(sizes) < 2:
            ms.runtime.synchronize()
            sizes.append(ms.runtime.memory_allocated())
        if len(sizes) == 2:
            note(sizes[1] - sizes[0])
            sizes.append(0)

    cell.register_forward_pre_hook(measure)
    cell.register_forward_hook(measure)


def _parameters_of(optimizer: nn.Cell) -> Iterator[ms.Parameter]:
    """Yield the parameters of an optimizer, also those in tuples, which MindSpore does not list."""
    yield from optimizer.get_parameters()
    for value in vars(optimizer).values():
        if isinstance(value, tuple | list):
            yield from (item for item in value if isinstance(item, ms.Parameter))


def _units_of(model: nn.Cell) -> Iterator[list[ms.Parameter]]:
    """Yield the parameters that FSDP gathers together: the embedding, those of each layer, and all others."""
    layers = [list(layer.get_parameters()) for layer in layers_of(model)]
    in_layers = {id(weight) for weights in layers for weight in weights}
    outside = [weight for weight in model.get_parameters() if id(weight) not in in_layers]
    yield [weight for weight in outside if "embedding" in weight.name]
    yield from layers
    yield [weight for weight in outside if "embedding" not in weight.name]


def _expert_sizes(parameters: Iterable[ms.Parameter]) -> tuple[int, int]:
    """Return the bytes of the parameters of experts, and of the others."""
    sizes = [0, 0]
    for parameter in parameters:
        sizes[".experts." not in f".{parameter.name}"] += parameter.nbytes
    return sizes[0], sizes[1]


def _size_bytes(parameters: Iterable[ms.Parameter]) -> int:
    return sum(parameter.nbytes for parameter in parameters)


def _reset() -> None:
    ms.runtime.synchronize()
    ms.runtime.reset_peak_memory_stats()
