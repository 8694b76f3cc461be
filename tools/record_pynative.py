"""Write down what mindformers 2.1.0 answers to `tests/policy/formats/mindformers2/cases.py`.

pip download --no-deps mindformers==2.1.0 -d /tmp/mf2x && unzip -d /tmp/mf2x /tmp/mf2x/*.whl
python tools/record_pynative.py /tmp/mf2x                  # writes expected.json
python tools/record_pynative.py /tmp/mf2x --random 1000    # compares mindswap with the wheel, writes nothing

The wheel is read where it lies and never installed: its dependencies are not on PyPI. What it needs of MindSpore and
hyper_parallel is replaced by stand-ins that only note which cells and callables get a wrapper.
"""

import argparse
import importlib
import json
import random
import sys
import types
from pathlib import Path
from typing import ClassVar

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mindswap.config.parse import parse_document  # noqa: E402
from mindswap.policy.formats.mindformers2.effect import log_lines  # noqa: E402
from mindswap.rules.checker import check_pynative  # noqa: E402 the checkout must be importable
from tests.policy.formats.mindformers2.builders import MODEL  # noqa: E402
from tests.policy.formats.mindformers2.cases import CASES, HEADER, OUTLINE, text_of  # noqa: E402
from tests.policy.formats.mindformers2.random_sections import random_sections  # noqa: E402


class Cell:
    """Children in `_cells`, everything else as an attribute: the part of `nn.Cell` that the wheel uses here."""

    def __init__(self):
        object.__setattr__(self, "_cells", {})

    def __setattr__(self, name, value):
        if isinstance(value, Cell):
            self._cells[name] = value
        else:
            object.__setattr__(self, name, value)

    def __getattr__(self, name):
        if name != "_cells" and name in self._cells:
            return self._cells[name]
        raise AttributeError(name)

    def construct(self, hidden_states, mask=None):
        """Names of the inputs, as the wheel reads them."""

    def register_forward_pre_hook(self, hook, with_kwargs=False):
        """Nothing runs here."""


class Wrapper(Cell):
    """Hides what it wraps, as the wrappers of hyper_parallel do."""

    def __init__(self, inner):
        super().__init__()
        self._cells["wrapped"] = inner if isinstance(inner, Cell) else Cell()


def wrap(target, **_options):
    """A wrapper of a cell, or of a callable."""
    return Wrapper(target) if isinstance(target, Cell) else (lambda *args: target(*args))


class SwapManager:
    """Notes which layer starts the copies of which."""

    pairs: ClassVar[list] = []

    def set_forward_prefetch_layer(self, layer, other):
        """Remember one pair."""
        self.pairs.append((layer, other))


class Logger:
    """Keeps the lines."""

    lines: ClassVar[list] = []

    def info(self, text, *args):
        """One line."""
        self.lines.append(text % args if args else text)

    warning = info

    def error(self, text, *args):
        """Swallow what is logged before an exception; the exception is recorded."""


def build(outline: dict) -> Cell:
    """A cell of the toy model."""
    methods = {name: (lambda self: None) for name in outline.get("methods", ())}
    cell = type("Toy", (Cell,), methods)()
    for name in outline.get("calls", ()):
        setattr(cell, name, lambda *args: args)
    for name, below in outline.get("cells", {}).items():
        setattr(cell, name, build(below))
    return cell


def build_model(num_layers: int = 4) -> Cell:
    """A decoder block."""
    model = Cell()
    object.__setattr__(model, "layers", [build(OUTLINE) for _ in range(num_layers)])
    object.__setattr__(model, "layer_start", 0)
    object.__setattr__(model, "layer_end", num_layers - 1)
    object.__setattr__(model, "config", types.SimpleNamespace(num_layers=num_layers, mtp_num_layers=0))
    return model


def load_wheel(folder: Path):
    """`TrainConfig` and the module with `apply_ac`, out of the unpacked wheel."""

    def module(name, **content):
        new_module = types.ModuleType(name)
        new_module.__dict__.update(content)
        sys.modules[name] = new_module

    cell_class = types.SimpleNamespace(Cell=Cell)
    module("mindspore", nn=cell_class, Tensor=type("Tensor", (), {}))
    names = ("checkpoint_exclude_wrapper", "checkpoint_wrapper", "swap_wrapper")
    module("hyper_parallel")
    module("hyper_parallel.core")
    wrappers = dict.fromkeys(names, wrap)
    module("hyper_parallel.core.activation_checkpoint", CheckpointPolicy=None, SwapManager=SwapManager, **wrappers)
    for name in ("mindformers", "mindformers.pynative", "mindformers.pynative.config", "mindformers.tools"):
        module(name, __path__=[str(folder / name.replace(".", "/"))])
    module("mindformers.pynative.distributed", __path__=[str(folder / "mindformers/pynative/distributed")])
    module("mindformers.tools.logger", logger=Logger())
    module("mindformers.tools.check_rules", check_yaml_depth_before_loading=None)
    config = importlib.import_module("mindformers.pynative.config.config")
    return config.TrainConfig, importlib.import_module("mindformers.pynative.distributed.activation_checkpoint")


def answer(text: str, base: dict, train_config, module) -> dict:
    """Result of the wheel on one configuration; `base` has the sections that TrainConfig needs besides."""
    Logger.lines.clear()
    SwapManager.pairs.clear()
    module._config_list = {}
    model = build_model()
    try:
        config = train_config.from_dict({**base, **yaml.safe_load(text)})
        stages = config.parallelism.pipeline_parallel
        module.apply_ac(model, config.recompute, config.recompute_comm, config.swap, stages)
    except Exception as error:  # noqa: BLE001 whatever it raises is the answer
        return {"error": f"{type(error).__name__}: {error}"}
    places = {id(layer): index for index, layer in enumerate(model.layers)}
    pairs = [[places[id(layer)], places[id(prefetched_layer)]] for layer, prefetched_layer in SwapManager.pairs]
    return {"log": list(Logger.lines), "pairs": pairs}


def compare(count: int, seed: int, ask) -> int:
    """Random configurations: refused by both or by none, and the same lines and pairs.

    Returns:
        0, or 1 if one differs.
    """
    source = random.Random(seed)
    num_refused = num_different = 0
    for _ in range(count):
        text = HEADER + yaml.safe_dump(random_sections(source), sort_keys=False)
        expected = ask(text)
        checked = check_pynative(parse_document(text.encode(), "x.yaml"), model=MODEL)
        if "error" in expected:
            num_refused += 1
            is_same = bool(checked.errors)
        else:
            layers = enumerate(checked.effect.layers)
            pairs = [[index, layer.fetch_layer] for index, layer in layers if layer.fetch_layer is not None]
            is_same = {"log": list(log_lines(checked.effect)), "pairs": pairs} == expected
        if not is_same:
            num_different += 1
            print(f"{text}\n{expected}\n")
    print(f"{count} configurations, {num_refused} refused, {num_different} different")
    return 1 if num_different else 0


def main() -> int:
    """Record all cases, or compare random ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="folder with the unpacked wheel")
    parser.add_argument("--random", type=int, metavar="N", help="compare N random configurations")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    wheel = args.wheel.resolve()
    train_config, module = load_wheel(wheel)
    base = yaml.safe_load((wheel / "configs/deepseek3/pretrain_deepseek3_1b_8p_pynative.yaml").read_text("utf-8"))
    if args.random:
        return compare(args.random, args.seed, lambda text: answer(text, base, train_config, module))
    paths = module._get_modules_and_ops_list(build_model())[0]
    cases = {name: answer(text_of(name), base, train_config, module) for name in CASES}
    data = {"recorded_with": "mindformers 2.1.0", "paths": paths, "cases": cases}
    target = ROOT / "tests/policy/formats/mindformers2/expected.json"
    target.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(f"{len(cases)} cases, {sum('error' in case for case in cases.values())} refused")
    return 0


if __name__ == "__main__":
    sys.exit(main())
