"""The verdict on all layers, from what the compiler does in each; networks compile in `test_cli.py`."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from mindswap.config.parse import parse_document
from mindswap.features import verify as api
from mindswap.graph.analysis.recompute_effect import RecomputeEffect
from mindswap.policy.model import Policy

DOCUMENT = parse_document("recompute_config: {recompute: True}\n", "x.yaml")
AS_ASKED = RecomputeEffect(0, True, ("mlp Mul",), 1, 2048, 1024)


@pytest.mark.parametrize(
    ("faults", "matches_policy"),
    [(({}, {}), True), (({}, {"missing": ("mlp Mul",)}), False), (({"idle": ("mlp",)}, {}), False)],
)
def test_recompute_is_as_asked_if_it_is_in_every_layer(faults, matches_policy, monkeypatch):
    effects = tuple(replace(AS_ASKED, layer_index=index, **fault) for index, fault in enumerate(faults))
    monkeypatch.setattr(api, "verify_recompute", lambda *asked: (effects, SimpleNamespace(notes=("a note",))))
    found = api._answer_recompute(DOCUMENT, Policy(), None, True)
    assert (found.matches_policy, found.data["ok"]) == (matches_policy, matches_policy)
    assert [layer["layer"] for layer in found.data["layers"]] == [0, 1] and "a note" in found.text
