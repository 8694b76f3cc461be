"""Device mesh of a pipeline without other parallelism, and FSDP over one rank, which changes nothing but gradients.

The ranks of the world are the stages of the pipeline; every other dimension of the mesh has one rank.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import mindspore as ms
from mindspore import nn
from mindspore.communication import GlobalComm
from mindspore.mint import distributed

from mindswap.adapters.pynative.hyper_parallel_stand_in.wrappers import show_wrapped_cells
from mindswap.errors import LaunchError

WORLD, PIPELINE = "world", "pp"
Cell = TypeVar("Cell", bound=nn.Cell)


@dataclass(frozen=True)
class DeviceMesh:
    """Ranks in named dimensions.

    Attributes:
        mesh_dim_names: names of the dimensions.
        mesh_shape: ranks in each.
        device_type: kind of device.
    """

    mesh_dim_names: tuple[str, ...]
    mesh_shape: tuple[int, ...]
    device_type: str = "npu"

    def __post_init__(self) -> None:
        for name, size in zip(self.mesh_dim_names, self.mesh_shape, strict=True):
            if size > 1 and name not in (WORLD, PIPELINE):
                raise LaunchError(
                    f"device mesh: dimension {name} has {size} ranks: the stand-in for HyperParallel has pipeline "
                    "stages only\n"
                    "    allowed: as many processes as parallelism.pipeline_parallel; data, tensor, context and expert "
                    "parallel sizes of 1\n"
                    "    fix:     build release 1.0.0 of github.com/mindspore-ai/hyper-parallel (PyPI does not have it)"
                )

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.mesh_shape)

    @property
    def has_all_ranks(self) -> bool:
        """Return whether the mesh contains all ranks; otherwise it contains this one alone."""
        return any(size > 1 for size in self.mesh_shape)

    @property
    def rank_list(self) -> tuple[int, ...]:
        """Ranks of the mesh."""
        return tuple(range(distributed.get_world_size())) if self.has_all_ranks else (distributed.get_rank(),)

    def size(self, dim: int | None = None) -> int:
        """Return the ranks of a dimension, or of the mesh."""
        return len(self.rank_list) if dim is None else self.mesh_shape[dim]

    def get_group(self) -> str:
        """Return the communication group of the mesh."""
        return GlobalComm.WORLD_COMM_GROUP if self.has_all_ranks else group_of(self.rank_list)

    def get_local_rank(self) -> int:
        """Return the position of this rank in the mesh."""
        return self.rank_list.index(distributed.get_rank())

    def get_rank_list_along_axis(self, name: str) -> list[int]:
        """Return the ranks along a dimension."""
        return list(self[name].rank_list)

    def __getitem__(self, names: str | tuple[str, ...]) -> "DeviceMesh":
        """Return the mesh of some dimensions."""
        chosen = (names,) if isinstance(names, str) else tuple(names)
        sizes = dict(zip(self.mesh_dim_names, self.mesh_shape, strict=True))
        return DeviceMesh(chosen, tuple(sizes[name] for name in chosen), self.device_type)

    def _unflatten(self, dim: int, sizes: tuple[int, ...], names: tuple[str, ...], **options: object) -> "DeviceMesh":
        return DeviceMesh(tuple(names), tuple(sizes), self.device_type)

    def _flatten(self, name: str) -> "DeviceMesh":
        return DeviceMesh((name,), (self.size(),), self.device_type)


_groups: dict[tuple[int, ...], str] = {}


def group_of(ranks: tuple[int, ...]) -> str:
    """Return the communication group of some ranks, which all of them have to ask for."""
    if ranks not in _groups:
        _groups[ranks] = distributed.new_group(list(ranks))
    return _groups[ranks]


def init_device_mesh(device_type: str, mesh_shape: tuple[int, ...], *, mesh_dim_names: tuple[str, ...]) -> DeviceMesh:
    """Return a mesh of all ranks."""
    return DeviceMesh(tuple(mesh_dim_names), tuple(mesh_shape), device_type)


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """Type of gradients while they are reduced.

    MindFormers makes one after all wrappers, before it looks into the layers again.
    """

    reduce_dtype: Any = None
    apply_grad_on_fp32_main_grad: bool = False

    def __post_init__(self) -> None:
        show_wrapped_cells()


class OffloadPolicy:
    """Weights stay on the device."""


class CPUOffloadPolicy(OffloadPolicy):
    """Weights are on the host, which the stand-in refuses."""

    def __init__(self) -> None:
        raise LaunchError(
            "parallelism.cpu_offload: the stand-in for HyperParallel keeps weights on the device\n    allowed: False"
        )


def fully_shard(module: Cell, mp_policy: MixedPrecisionPolicy | None = None, **options: object) -> Cell:
    """Shard the weights of a module over one rank, so they stay as they are; gradients become float32.

    Args:
        module: the cell; its weights are not replaced.
        mp_policy: with `apply_grad_on_fp32_main_grad`, gradients of a lower precision are cast.
        options: of FSDP over several ranks; they have no effect.
    """
    if mp_policy is not None and mp_policy.apply_grad_on_fp32_main_grad:
        for parameter in module.trainable_params():
            if parameter.dtype in (ms.bfloat16, ms.float16) and id(parameter) not in _cast_parameters:
                _cast_parameters[id(parameter)] = parameter
                parameter.register_hook(_to_float32)
    return module


_cast_parameters: dict[int, ms.Parameter] = {}  # by `id`; holding them keeps these unique


def _to_float32(gradient: ms.Tensor) -> ms.Tensor:
    return ms.ops.cast(gradient, ms.float32)
