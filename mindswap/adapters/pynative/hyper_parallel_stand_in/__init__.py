"""Stand-in for HyperParallel 1.0, for MindFormers 2.x: one process, or a process for each pipeline stage.

MindFormers 2.x imports `hyper_parallel` in most of its PyNative modules, and PyPI does not have it. This stand-in has
what one process uses: swap and recompute wrappers, and the methods of tensors that the trainer calls; and pipeline
stages, without data, tensor, context and expert parallelism. It is written from HyperParallel's documentation. Every
other name can be imported, but not used: it raises `LaunchError` with that name.
"""

import importlib.machinery
import importlib.util
import sys
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any

from mindswap.adapters.pynative.hyper_parallel_stand_in import autograd, mesh, pipeline, swap, wrappers
from mindswap.errors import LaunchError

NAME = "hyper_parallel"


class SkipDTensorDispatch:
    """Context in which distributed tensors are handled as local ones: all tensors of one process are local."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass


class Platform:
    """The platform of HyperParallel, whose functions are communication and device handling."""

    def __getattr__(self, name: str) -> Any:
        return unsupported_class(f"{NAME}.platform.get_platform().{name}")


@dataclass(frozen=True)
class TensorPlacement:
    """How a dimension of the device mesh holds a tensor; MindFormers makes some when it is imported."""

    dim: int | None = None


class Shard(TensorPlacement):
    """Split along a dimension of the tensor."""


class Replicate(TensorPlacement):
    """The whole tensor on each rank."""


class Partial(TensorPlacement):
    """Summands of the tensor."""


# Module below `hyper_parallel` -> names that one process uses.
PROVIDED: dict[str, dict[str, Any]] = {
    "": {
        "DeviceMesh": mesh.DeviceMesh,
        "PipelineStage": pipeline.PipelineStage,
        "SkipDTensorDispatch": SkipDTensorDispatch,
        "init_device_mesh": mesh.init_device_mesh,
    },
    "core.activation_checkpoint": {
        "CheckpointPolicy": swap.CheckpointPolicy,
        "SwapManager": swap.SwapManager,
        "checkpoint_exclude_wrapper": wrappers.checkpoint_exclude_wrapper,
        "checkpoint_wrapper": wrappers.checkpoint_wrapper,
        "swap_wrapper": wrappers.swap_wrapper,
    },
    "core.dtensor.placement_types": {
        "Partial": Partial,
        "Placement": TensorPlacement,
        "Replicate": Replicate,
        "Shard": Shard,
    },
    "core.fully_shard.api": {
        "MixedPrecisionPolicy": mesh.MixedPrecisionPolicy,
        "fully_shard": mesh.fully_shard,
    },
    "core.fully_shard.utils": {"CPUOffloadPolicy": mesh.CPUOffloadPolicy, "OffloadPolicy": mesh.OffloadPolicy},
    "core.pipeline_parallel": {
        "Schedule1F1B": pipeline.Schedule1F1B,
        "ScheduleGPipe": pipeline.ScheduleGPipe,
    },
    "platform": {"get_platform": Platform},
    "platform.mindspore.autograd_compat": {
        "enable_mindspore_backward_compat": autograd.enable_mindspore_backward_compat
    },
}


def unsupported_class(path: str) -> type:
    """Return a class that can be imported, subclassed and compared with, and raises when it is called."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise LaunchError(
            f"{path}: needs HyperParallel, which is not installed\n"
            "    allowed: one process, or one for each pipeline stage: swap, recompute, no other parallelism, and no "
            "fused operators of its own\n"
            "    fix:     build release 1.0.0 of github.com/mindspore-ai/hyper-parallel (PyPI does not have it)"
        )

    return type(path.rpartition(".")[2], (), {"__new__": refuse, "__module__": path.rpartition(".")[0]})


class _StandIn(ModuleType):
    """A module below `hyper_parallel`; names that it does not provide are unsupported classes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = unsupported_class(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Importer(MetaPathFinder, Loader):
    """Importer of the stand-in's modules; every name of a module below `hyper_parallel` exists."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        if fullname.partition(".")[0] != NAME:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(PROVIDED.get(module.__name__.partition(".")[2], {}))


def install_unless_present() -> bool:
    """Make `hyper_parallel` importable, by this stand-in unless the package is installed.

    Returns:
        Whether the stand-in is used.
    """
    if importlib.util.find_spec(NAME) is not None:
        return False
    sys.meta_path.append(_Importer())
    return True
