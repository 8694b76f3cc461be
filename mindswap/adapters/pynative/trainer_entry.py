"""Training entry for configurations of MindFormers 2.x: its PyNative trainer, without a script."""

from typing import Any

import mindspore as ms

from mindswap.adapters.pynative.hyper_parallel_stand_in import install_unless_present
from mindswap.adapters.pynative.trainer_dry_run import name_device_of_empty_cells


def prepare_device(device: str, has_cpu_stand_ins: bool) -> None:
    """Prepare this process for the trainer, before MindFormers' trainer is imported.

    Args:
        device: `CPU` or `Ascend`.
        has_cpu_stand_ins: replace operators without a CPU kernel.
    """
    ms.set_device(device)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    install_unless_present()
    if device == "CPU":
        # The function of mint asks for hccl, whatever the device.
        ms.mint.distributed.init_process_group = lambda *arguments, **options: ms.communication.init()
    name_device_of_empty_cells(device)
    if device == "CPU" and has_cpu_stand_ins:
        from mindswap.adapters.pynative.cpu_kernels_2x import replace_cpu_kernels

        replace_cpu_kernels()


def train(config: dict[str, Any]) -> None:
    """Train.

    Args:
        config: configuration of MindFormers 2.x.
    """
    from mindformers.pynative.trainer import Trainer

    Trainer(config).train()
