"""The effect of a policy as text: equal layers once, sizes in one unit, the verdict."""

from dataclasses import replace

from mindswap.report.effect import format_effect, format_recompute_effect, recompute_effect_to_json
from tests.graph.effect import test_recompute as recompute
from tests.graph.effect import test_swap as swap


def test_swap_with_equal_layers_once():
    """Backward keeps the outputs of `matmul` and `gelu`, 1 KiB each; layers 0 and 2 swap `gelu`."""
    swapped = swap.compare(swap.gelu_swapped(), swap.policy(r"mlp\.gelu"))
    missed = swap.compare(swap.BASELINE, swap.policy(r"mlp\.gelu"))
    effects = [replace(effect, layer_index=index) for index, effect in enumerate((swapped, missed, swapped))]
    assert format_effect(effects, False, ["one micro-batch"]).splitlines() == [
        "layers       MoveTo pairs  swapped  kept without swap    kept  recomputed ops  as asked",
        "-----------  ------------  -------  -----------------  ------  --------------  --------",
        "layers 0, 2             1   1024 B             2048 B  1024 B               0       yes",
        "layer 1                 0      0 B             2048 B  2048 B               0        NO",
        "",
        "layers 0, 2:",
        "    swapped mlp Gelu: 1.0 KiB float32[256], prefetch 5",
        "layer 1:",
        "    NOT swapped though asked: mlp Gelu",
        "    without effect: 'mlp\\.gelu': backward needs none of these outputs",
        "",
        "note: one micro-batch",
        "the compiled graph does NOT do what the policy asks: 2 MoveTo pairs, 2.0 KiB swapped per micro-batch",
    ]


def test_what_is_copied_for_nothing_has_its_bytes():
    step = swap.graph([*swap.forward(), swap.copy_out("out", "gelu", prefetch=5)], saved="matmul gelu")
    text = format_effect([swap.compare(step, swap.policy(r"mlp\.gelu"))], False).splitlines()
    assert "    copied out and never read back: 1.0 KiB float32[256] of mlp, for nothing" in text
    assert text[-1].endswith("0 MoveTo pairs, 0 B swapped per micro-batch, 1.0 KiB more copied out and never read back")


def test_layers_of_which_there_is_nothing_to_say_have_no_heading():
    kept = replace(swap.compare(swap.BASELINE, swap.policy()), layer_index=1)
    swapped = replace(swap.compare(swap.gelu_swapped(), swap.policy(r"mlp\.gelu")), layer_index=0)
    assert format_effect([swapped, kept], True).splitlines()[4:7] == [
        "",
        "layer 0:",
        "    swapped mlp Gelu: 1.0 KiB float32[256], prefetch 5",
    ]
    assert "layer 1:" not in format_effect([swapped, kept], True)


def test_recompute():
    """The cell runs again and keeps nothing; without recompute it keeps 2 KiB."""
    marked = recompute.step(recompute.MLP, recompute.MLP, saved="")
    effects = [recompute.compare(marked, select_recompute=recompute.select("mlp"))]
    assert format_recompute_effect(effects, True).splitlines() == [
        "layers     asked  recomputed ops  kept without recompute  kept  as asked",
        "-------  -------  --------------  ----------------------  ----  --------",
        "layer 0  in part               2                  2048 B   0 B       yes",
        "",
        "layer 0:",
        "    recomputed mlp Matmul",
        "    recomputed mlp Gelu",
        "",
        "swap is off; MindFormers' own recompute in the compiled graph does what recompute_config asks: "
        "2.0 KiB less kept per micro-batch",
    ]
    data = recompute_effect_to_json(effects, True)
    assert (data["ok"], data["layers"][0]["operators"]) == (True, ("mlp Matmul", "mlp Gelu"))
