"""A training script as users of MindFormers on CPU write it; it knows nothing of mindswap.

python plain_training.py --config CONFIG [--train_dataset_dir D --output_dir O --run_mode train]
"""

import argparse
import json
import sys
from pathlib import Path

import mindspore as ms
from mindformers.core.context import build_context
from mindformers.models.llama import LlamaForCausalLM
from mindformers.tools.register import MindFormerConfig, MindFormerModuleType, MindFormerRegister
from mindformers.trainer import Trainer
from mindformers.utils.file_utils import set_output_path
from mindformers.wrapper import MFTrainOneStepCell
from mindspore import ops

ATTRIBUTES = Path("attributes.json")


def read_attributes(network):
    """What is set on every cell and primitive."""
    attributes = {}
    for name, cell in network.cells_and_names():
        attributes[f"cell {name}"] = {
            "scope": cell.get_scope(),
            "lazy_inline": bool(getattr(cell, "_cell_init_args", "")),
        }
        for key, value in {**vars(cell), **getattr(cell, "_primitives", {})}.items():
            if isinstance(value, ops.Primitive):
                attributes[f"primitive {name}.{key}"] = {k: str(v) for k, v in sorted(value.attrs.items())}
    return attributes


@MindFormerRegister.register(MindFormerModuleType.WRAPPER)
class TrainOneStepWithoutOverflow(MFTrainOneStepCell):
    """CPU has no overflow flag. Before it is compiled, it writes what is set on the network."""

    def compile(self, *args, **kwargs):
        if not ATTRIBUTES.exists():
            ATTRIBUTES.write_text(json.dumps(read_attributes(self.network)))
        return super().compile(*args, **kwargs)

    def process_loss_scale(self, overflow):
        return overflow

    def get_overflow_status(self, status, compute_output):
        return ms.Tensor(False)

    def start_overflow_check(self, pre_cond, compute_input):
        return ms.Tensor(False), compute_input


@MindFormerRegister.register(MindFormerModuleType.MODELS)
class OwnLlama(LlamaForCausalLM):
    """A model that no table of operators knows."""


def main():
    parser = argparse.ArgumentParser()
    for option in ("config", "run_mode", "train_dataset_dir", "output_dir"):
        parser.add_argument(f"--{option}", required=True)
    args = parser.parse_args()
    config = MindFormerConfig(args.config, run_mode=args.run_mode)
    config.train_dataset.data_loader.dataset_dir = args.train_dataset_dir
    config.output_dir = args.output_dir
    set_output_path(config.output_dir)
    build_context(config)
    Trainer(config).train()
    print("mindswap is", "there" if "mindswap" in sys.modules else "not there")


if __name__ == "__main__":
    main()
