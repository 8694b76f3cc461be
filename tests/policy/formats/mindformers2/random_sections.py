"""Random sections of a 2.x file for the toy model, right and wrong ones: for `tools/record_pynative.py --random`."""

import random

from tests.policy.formats.mindformers2.builders import MODEL

__all__ = ["random_sections"]

_PATHS = MODEL.layers[0].order
_PATTERNS = (
    *(path.replace(".", r"\.") for path in _PATHS),
    *_PATHS,
    *(".*", ".*linear.*", "mlp.*", "attention", r".*\.matmul", "(mlp|add)", "[^.]*norm", ".*mul", "*x"),
)


def random_sections(source: random.Random) -> dict:
    """The three sections as plain data; each may be missing."""
    sections = {}
    if _is(source, 0.8):
        swap = {"enable": _odd(source, 0.03, ("yes", 1, None), source.random() < 0.9)}
        if _is(source, 0.4):
            swap["default_prefetch"] = _odd(source, 0.2, (0, "1", True, None, 1.5, 4), source.choice((1, 1, 2, 3)))
        if _is(source, 0.6):
            entries = [{"layers": _layers(source)} for _ in range(source.choice((1, 1, 1, 2)))]
            swap["layer_swap"] = _odd(source, 0.04, ({}, {"layers": [0]}, [], [3], None, 5), entries)
        if _is(source, 0.7):
            entries = [{"op_name": _name(source), "layers": _layers(source)} for _ in range(source.randint(1, 3))]
            swap["op_swap"] = _odd(source, 0.04, ({}, [], None, 5, [{}]), entries)
        sections["swap"] = {**swap, "x": 1} if _is(source, 0.02) else swap
    if _is(source, 0.6):
        mode = source.choice(("None", "full", "select", "select", "full"))
        recompute = {"mode": _odd(source, 0.03, (None, True, "x"), mode)}
        if _is(source, 0.7):
            recompute["full_recompute_layer"] = _layers(source)
        for key, share in (("select_module", 0.7), ("exclude_op", 0.4)):
            if _is(source, share):
                recompute[key] = _modules(source)
        sections["recompute"] = recompute
    if _is(source, 0.4):
        sections["recompute_comm"] = {"enable": _is(source, 0.9), "select_module": _modules(source)}
    return sections


def _is(source: random.Random, share: float) -> bool:
    return source.random() < share


def _odd(source: random.Random, share: float, wrong: tuple, right: object) -> object:
    """Mostly what is right."""
    return source.choice(wrong) if _is(source, share) else right


def _name(source: random.Random) -> object:
    return _odd(source, 0.02, (None, 3, ["a"], " "), source.choice(_PATTERNS))


def _layers(source: random.Random) -> object:
    found = sorted(source.sample(range(3 if _is(source, 0.95) else 4), source.randint(1, 3)))
    specs: list = [index if _is(source, 0.5) else str(index) for index in found]
    if _is(source, 0.3):
        specs = [f"{found[0]}-{found[-1]}"]
    elif _is(source, 0.02):
        source.shuffle(specs)
    wrong = (True, "0-2", None, 3, {}, [], ["2-1"], ["0 - 1"], [-1], [4], ["0-5"], [True], [None], [1.0], ["x"], [[0]])
    return _odd(source, 0.06, wrong, specs)


def _modules(source: random.Random) -> object:
    found = {source.choice(_PATTERNS): _layers(source) for _ in range(source.randint(1, 3))}
    return _odd(source, 0.04, ([], ["mlp"], None, {}, 3, {3: [0]}), found)
