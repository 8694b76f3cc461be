import json
from dataclasses import replace

from mindswap.features.simulate.report import format_simulation, simulation_to_json
from mindswap.report.simulation_text import describe_layers
from tests.report.simulated import MIB, MS, large_program, pipeline_report, report_of, small_report

TEXT = """\
simulated step of small.yaml on Atlas 800T A2

  step time            25.0 ms  of which 5.00 ms optimizer
  tokens/s per card     163840
  MFU                   40.0 %  of 100.0 TFLOPS per card
  peak memory          4.1 GiB  fits in 5.0 GiB with 960.0 MiB to spare
  peak is at              0 ns  forward, layer 0, micro-batch 0: ffn Mul
  exposed copy time    8.00 ms  32.0 % of the step
  host memory         64.0 MiB  pinned per card; 64.0 MiB per node

pipeline stage     peak   static  activations  compute  waits for D2H  waits for H2D   swapped  D2H busy  H2D busy
--------------  -------  -------  -----------  -------  -------------  -------------  --------  --------  --------
stage 0         4.1 GiB  4.0 GiB     64.0 MiB  12.0 ms        3.00 ms        5.00 ms  64.0 MiB    15.0 %    25.0 %

at the peak of stage 0 the device holds:
       1.0 GiB  weights
       1.0 GiB  optimizer states
       1.0 GiB  accumulated gradients
      64.0 MiB  saved activations
       1.0 GiB  workspace
of these, without static memory, by operator:
      64.0 MiB  ffn Mul, layer 0, saved activations

per micro-batch         kept      swapped  copies  forward  backward  waited for its copies
---------------  -----------  -----------  ------  -------  --------  ---------------------
layer 0                    -  65536.0 KiB       1  2.00 ms   4.00 ms                8.00 ms
layer 1          32768.0 KiB            -       -  2.00 ms   4.00 ms                      -

compute waits for, longest first (all stages and micro-batches):
     5.00 ms  prefetch (H2D) of ffn Mul, layer 0
     3.00 ms  offload (D2H) of ffn Mul, layer 0

note: layer 1 was not compiled
every figure above is simulated; no device was used; the figures of the device, with sources: --figures"""
FIGURES = """\
figures of the device that were used:
    offload (D2H)    20.0 GB/s  (measured)
    cards in a node  8  (assumed)
note: layer 1 was not compiled
every figure above is simulated; no device was used"""


def test_text_of_a_small_step():
    assert format_simulation(small_report()) == TEXT


def test_the_figures_of_the_device_are_listed_where_they_are_asked_for():
    shown = TEXT.partition("note: ")[0]
    assert format_simulation(small_report(), has_figures=True) == shown + FIGURES


def test_what_is_copied_for_nothing_is_said_below_the_layers():
    report = small_report()
    layers = (replace(report.layers[0], out_only_bytes=3 * MIB), *report.layers[1:])
    text = format_simulation(replace(report, layers=layers))
    assert "\noffloaded but never prefetched: 3.0 MiB, layer 0\n\ncompute waits for" in text


def test_a_peak_over_the_budget_is_said_loudly():
    text = format_simulation(small_report(budget_bytes=4 * 2**30))
    assert "does NOT fit, 64.0 MiB more than 4.0 GiB" in text


def test_stages_with_equal_figures_are_one_row():
    text = format_simulation(report_of(large_program(3, 1, 2, 3)))
    assert "stages 0-2 " in text
    assert "stage 0 " not in text.replace("peak of stage 0 the", "").replace("stage 0, ", "")


def test_control_characters_of_names_do_not_reach_the_terminal():
    text = format_simulation(small_report(title="a\x1b[31m.yaml", notes=("b\x07",)))
    assert "\x1b" not in text and "\x07" not in text
    assert "a\\x1b[31m.yaml" in text


def test_json_has_every_figure_and_says_simulated():
    data = json.loads(json.dumps(simulation_to_json(small_report())))
    assert data["simulated"] is True
    assert data["step_time_ns"] == 25 * MS
    assert data["tokens_per_s"] == 163840
    assert data["mfu"] == 0.4
    assert data["peak_bytes"] == 4 * 2**30 + 64 * MIB
    assert data["fits"] is True
    assert data["terms"][0] == {"name": "optimizer", "duration_ns": 5 * MS}
    (stage,) = data["stages"]
    assert stage["peak_moment"] == {
        "time_ns": 0, "phase": "forward", "layer": 0, "micro_batch": 0, "label": "ffn Mul"
    }  # fmt: skip
    assert stage["static_bytes"]["optimizer states"] == 2**30
    assert sum(stage["parts"].values()) == stage["peak_bytes"]
    assert stage["parts"]["saved activations"] == stage["holders"][0]["size_bytes"]
    assert stage["holders"][0]["part"] == "saved activations"
    assert (stage["exposed_copy_out_ns"], stage["exposed_copy_in_ns"]) == (3 * MS, 5 * MS)
    assert (stage["link_out_use"], stage["link_in_use"]) == (0.15, 0.25)  # of the 20 ms of operators
    assert stage["holders"][0]["kind"] == "offloading"
    assert data["causes"][0] == {"label": "ffn Mul", "cause": "copy_in", "layers": [0], "exposed_ns": 5 * MS}
    assert [row["swapped_bytes"] for row in data["layers"]] == [64 * MIB, 0]
    assert data["device_figures"][0]["source"] == "measured"


def test_json_of_a_pipeline_has_every_stage():
    data = simulation_to_json(pipeline_report())
    assert [stage["bubble_ns"] for stage in data["stages"]] == [34 * MS, 34 * MS]


def test_places_in_words():
    assert describe_layers([0, 1, 2, 5]) == "layers 0-2, 5"
    assert describe_layers([-1]) == "outside the layers"
    assert describe_layers([-1, 3]) == "layer 3 and outside the layers"
    assert describe_layers([0, 2, 4, 6]) == "layers 0, 2, 4, 6"
    assert describe_layers([0, 2, 4, 6, 8]) == "5 layers of 0-8"
