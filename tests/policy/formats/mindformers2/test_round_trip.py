"""2.x -> 1.9 -> 2.x by name: whole cells and layers come back as they were, in both families of names."""

import json
import random

import pytest

from mindswap.config.parse import parse_document
from mindswap.config.render import document_from_data
from mindswap.policy.formats.mindformers2.conversion import to_1_9, to_2x
from mindswap.policy.formats.mindformers2.tables import dense_layer
from mindswap.rules.checker import check_document, check_pynative
from tests.strength import examples

HEADER = {"training": {}, "parallelism": {}, "model": {"model_type": "qwen3", "num_hidden_layers": 8}}
CELLS = sorted(dense_layer().cells)


def random_settings(source: random.Random) -> dict:
    def layers(count):
        return [str(index) for index in sorted(source.sample(range(count), source.randint(1, count)))]

    def cells(count):
        return [path.replace(".", r"\.") for path in source.sample(CELLS, count)]

    prefetch = source.choice((1, 2))
    swap: dict = {"enable": True, "default_prefetch": prefetch}
    swap["op_swap"] = [{"op_name": name, "layers": layers(8 - prefetch)} for name in cells(2)]
    if source.random() < 0.5:
        swap["layer_swap"] = [{"layers": layers(8 - prefetch)}]
    recompute: dict = {"mode": "select", "select_module": {name: layers(8) for name in cells(2)}}
    if source.random() < 0.5:
        recompute["full_recompute_layer"] = layers(8)
    return {**HEADER, "swap": swap, "recompute": recompute}


def layers_of(data: dict) -> list | None:
    """What happens to each layer; None where something is wrong with the settings."""
    checked = check_pynative(parse_document(json.dumps(data).encode(), "x.yaml"))
    if checked.errors:
        return None
    # A recomputed layer that is swapped moves its input in 2.x, and nothing in 1.9.
    return [
        (layer.is_recomputed, set(layer.recomputed), layer.is_swapped and not layer.is_recomputed, set(layer.swapped))
        for layer in checked.effect.layers
    ]


@pytest.mark.parametrize("use_legacy", [False, True])
def test_what_goes_to_1_9_comes_back(use_legacy):
    source, num_compared = random.Random(0), 0
    while num_compared < examples(12, 40):
        data = random_settings(source)
        first = layers_of(data)
        if first is None:  # nothing left to swap, say
            continue
        effect = check_pynative(parse_document(json.dumps(data).encode(), "x.yaml")).effect
        old = to_1_9(effect, 10, use_legacy).sections
        checked = check_document(document_from_data({**old, "use_legacy": use_legacy}, "x.yaml"), 8)
        assert checked.policy is not None, checked.problems
        assert layers_of({**HEADER, **to_2x(checked.policy, 8, 1, 10).sections}) == first
        num_compared += 1
