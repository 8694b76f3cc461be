import pytest

from mindswap.config.device_memory import read_device_memory
from mindswap.config.problem import Level
from mindswap.config.step_settings import read_device_target
from tests.builders import check, document, found

# Rule `context-mode`.


@pytest.mark.parametrize("value", ["1", "PYNATIVE_MODE", "True", "False", "null", "2"])
def test_other_values_are_reported(value):
    assert found(f"{{swap_config: {{swap: True}}, context: {{mode: {value}}}}}") == [(1, 45, "context-mode")]


@pytest.mark.parametrize("value", ["0", "GRAPH_MODE"])
def test_graph_mode_passes(value):
    assert found(f"{{swap_config: {{swap: True}}, context: {{mode: {value}}}}}") == []


@pytest.mark.parametrize("value", ["1", "PYNATIVE_MODE"])
def test_pynative_mode_passes_on_cpu_and_what_is_of_the_compiler_is_not_asked(value):
    settings = f"mode: {value}, device_target: CPU, memory_optimize_level: O1, jit_config: {{jit_level: O2}}"
    assert found(f"{{swap_config: {{swap: True}}, context: {{{settings}}}}}") == []


def test_on_a_device_the_copies_have_to_be_asked_for():
    text = (
        "{{swap_config: {{swap: True}}, context: {{mode: 1, device_target: Ascend}}, mindswap: {{stream_copies: {}}}}}"
    )
    assert found(text.format("True")) == []
    assert found(text.format("False")) == [(1, 45, "context-mode")]


def test_a_missing_key_passes():
    assert found("{swap_config: {swap: True}, context: {}}") == []


def test_a_device_target_that_is_null_is_missing():
    assert (
        read_device_target(document("context: {device_target: null}"))
        == read_device_target(document("a: 1"))
        == "Ascend"
    )


# Rule `device-target`.


@pytest.mark.parametrize("value", ["CPU", "GPU", "ascend"])
def test_other_values_are_reported_device_target(value):
    assert found(f"{{swap_config: {{swap: True}}, context: {{device_target: {value}}}}}") == [(1, 54, "device-target")]


@pytest.mark.parametrize("value", ["Ascend", "'Ascend'"])
def test_the_right_value_passes(value):
    assert found(f"{{swap_config: {{swap: True}}, context: {{device_target: {value}}}}}") == []


def test_a_missing_key_passes_device_target():
    assert found("{swap_config: {swap: True}, context: {}}") == []


# Rule `optimizer-swap`.


@pytest.mark.parametrize(
    ("text", "findings"),
    [
        ("{optimizer: {type: AdamW, swap: True}, context: {device_target: CPU}}", [(1, 33, "optimizer-swap")]),
        ("{optimizer: {type: AdamW, swap: False}, context: {device_target: CPU}}", []),
        ("{optimizer: {type: AdamW}, context: {device_target: CPU}}", []),
        ("{optimizer: {type: AdamW, swap: True}, context: {device_target: Ascend}}", []),
        ("{optimizer: {type: AdamW, swap: True}}", []),
    ],
)
def test_states_on_the_host_have_no_effect_on_cpu(text, findings):
    assert found(text) == findings


# Rule `jit-level`.


@pytest.mark.parametrize("value", ["O2", "O3", "2", "True"])
def test_other_levels_are_reported_at_both_places(value):
    text = f"""
        swap_config: {{swap: True}}
        context:
          jit_level: {value}
          jit_config: {{jit_level: {value}}}
    """
    assert found(text) == [(3, 14, "jit-level"), (4, 27, "jit-level")]


@pytest.mark.parametrize("value", ["O0", "O1"])
def test_the_levels_of_the_specification_pass(value):
    assert found(f"{{swap_config: {{swap: True}}, context: {{jit_config: {{jit_level: {value}}}}}}}") == []


# Rule `lazy-inline-env`.


def levels(environ, config=""):
    result = check("{swap_config: {swap: True}" + config + "}", environ=environ)
    return [(str(p.location), p.rule, p.level.value) for p in result.problems if p.rule != "device-target"]


def test_zero_forbids_what_swap_needs():
    assert levels({"ENABLE_LAZY_INLINE_NO_PIPELINE": "0"}) == [("environment", "lazy-inline-env", "error")]


def test_one_and_unset_pass():
    assert levels({"ENABLE_LAZY_INLINE_NO_PIPELINE": "1"}) == []
    assert levels({}) == []
    assert levels(None) == []


def test_pipeline_stages_have_lazy_inline_anyway():
    assert levels({"ENABLE_LAZY_INLINE_NO_PIPELINE": "0"}, ", parallel_config: {pipeline_stage: 2}") == []


def test_cpu_runs_without_lazy_inline_anyway():
    assert levels({"ENABLE_LAZY_INLINE_NO_PIPELINE": "0"}, ", context: {device_target: CPU}") == []


# Rule `max-device-memory`.


TEXT = "{context: {max_device_memory: %s}, swap_config: {swap: True}%s}"


@pytest.mark.parametrize(("text", "size_bytes"), [('"58GB"', 58 * 2**30), ("0.5GB", 2**29), ("3.5GB", 7 * 2**29)])
def test_gb_is_gib_as_in_mindspore(text, size_bytes):
    limit = read_device_memory(document(TEXT % (text, "")))
    assert (limit.size_bytes, limit.source) == (size_bytes, "context.max_device_memory, x.yaml:1:31")
    assert found(TEXT % (text, "")) == []


@pytest.mark.parametrize("text", ["58", '"58 GB"', "58GiB", "0GB", "05GB", "1e1GB", "[1]", "True"])
def test_what_mindspore_refuses_is_an_error(text):
    assert found(TEXT % (text, "")) == [(1, 31, "max-device-memory")]
    assert read_device_memory(document(TEXT % (text, ""))) is None


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('"58 GB"', "58GB"),
        ("58", "58GB"),
        ("58.5", "58.5GB"),
        ("58G", "58GB"),
        ("'58 gib'", "58GB"),
        ("59392MB", "58GB"),
        ("0.5TB", "512GB"),
        ("058GB", "58GB"),
        ("0GB", ""),
        ("True", ""),
        ("all of it", ""),
        ("58B", ""),
        ("[58]", ""),
    ],
)
def test_the_fix_is_the_memory_as_mindspore_takes_it(text, meant):
    (problem,) = check(TEXT % (text, "")).problems
    assert problem.fix == (f'max_device_memory: "{meant}"' if meant else "")
    assert not meant or found(TEXT % (f'"{meant}"', "")) == []


# Rule `unmanaged-device-memory`.

PIPELINE = "use_parallel: True, parallel_config: {data_parallel: 2, model_parallel: 4, pipeline_stage: 2}"


@pytest.mark.parametrize(
    ("text", "others", "environ", "message"),
    [
        ('"58GB"', PIPELINE, {}, ""),
        ('"57GB"', PIPELINE, {"HCCL_BUFFSIZE": "400"}, "leaves 4.0 GiB of the 61.0 GiB that CANN offers"),
        ('"59GB"', PIPELINE, {}, "HCCL takes 2.3 GiB for 6 communicators (world, tensor parallel, data parallel, pipe"),
        ('"60GB"', "use_parallel: False", {}, ""),  # no communicator
        ('"61GB"', "use_parallel: False", {}, "CANN offers 61.0 GiB; MindSpore stops"),
        ('"70GB"', PIPELINE, {}, "MindSpore ignores it and takes 15/16 of the free memory, 57.1 GiB of the 61.0 GiB"),
        ('"1024GB"', PIPELINE, {}, ""),  # MindSpore's default: no limit
        ('"61GB"', "context: {device_target: CPU}", {}, ""),
    ],
)
def test_the_limit_leaves_memory_for_hccl(text, others, environ, message):
    inner = others.removeprefix("context: {").removesuffix("}") if others.startswith("context") else ""
    extra = f", {inner}" if inner else ""
    rest = "" if inner else f", {others}"
    problems = check(f"{{context: {{max_device_memory: {text}{extra}}}{rest}}}", environ=environ).problems
    assert [p.rule for p in problems] == (["unmanaged-device-memory"] if message else [])
    assert all(message in p.message and p.level is Level.WARNING for p in problems)


@pytest.mark.parametrize("device", ["atlas_800i_a2_32g", "atlas_800_9000"])
@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ('"28GB"', "", ""),  # 2.34 GiB of HCCL would fit into 2.48
        ('"29GB"', "leaves 1.5 GiB of the 30.5 GiB (assumed) that CANN offers of %s, HCCL takes 2.3 GiB for 6", "28GB"),
        ('"31GB"', "is more than %s has: CANN offers 30.5 GiB (assumed); MindSpore stops", "28GB"),
        ('"58GB"', "is more than %s has: CANN offers 30.5 GiB (assumed); MindSpore stops", "28GB"),
        ('"1024GB"', "", ""),
    ],
)
def test_the_limit_leaves_memory_for_hccl_on_cards_of_32_gb(device, text, message, fix):
    text = f"{{context: {{max_device_memory: {text}}}, {PIPELINE}, mindswap: {{device: {device}}}}}"
    problems = [p for p in check(text).problems if p.rule == "unmanaged-device-memory"]
    assert bool(problems) == bool(message)
    assert all(message % device in p.message and p.allowed == f"at most {fix}" for p in problems)


def test_the_limit_leaves_memory_on_a_die_of_a3_and_on_a_card_of_the_users_own(tmp_path):
    """A die of A3 has 61.27 GiB; a copy of a device file with other sizes, in another unit, counts as it is."""
    text = '{context: {max_device_memory: "%s"}, use_parallel: False, mindswap: {device: %s}}'
    assert found(text % ("61GB", "a3_die")) == []
    assert [p.rule for p in check(text % ("62GB", "a3_die")).problems] == ["unmanaged-device-memory"]
    (tmp_path / "mine.yaml").write_text("device_memory_gb: {value: 24}\nusable_memory_gib: 20\n", encoding="utf-8")
    (problem,) = check(text % ("23GB", tmp_path / "mine.yaml")).problems
    assert "is more than mine has: CANN offers 22.4 GiB; MindSpore stops" in problem.message
    assert problem.allowed == "at most 20GB"
    assert found(text % ("23GB", "cpu")) == found(text % ("23GB", "generic")) == []


@pytest.mark.parametrize("content", ["64GiB", ".inf", ".nan", "[1, 2]", "{value: x}", None])
def test_a_device_file_that_cannot_be_used_is_left_to_those_who_use_it(tmp_path, content):
    text = '{context: {max_device_memory: "58GB"}, use_parallel: False, mindswap: {device: %s}}'
    path = tmp_path / "mine.yaml"
    path.write_bytes(
        b"\xff\xfe" if content is None else f"device_memory_gib: {content}\nusable_memory_gib: 20\n".encode()
    )
    assert "unmanaged-device-memory" not in found(text % path)
    assert "unmanaged-device-memory" not in found(text % ("x" * 300))


def test_buffers_of_the_section_mindswap_count():
    text = '{context: {max_device_memory: "57GB"}, %s, mindswap: {hccl_buffer: %s}}'
    assert found(text % (PIPELINE, "200MiB")) == []
    (problem,) = check(text % (PIPELINE, "400MiB"), environ={"HCCL_BUFFSIZE": "100"}).problems
    assert "HCCL takes 4.7 GiB for 6 communicators" in problem.message


def test_in_a_run_with_swap_off_it_is_a_warning():
    assert [p.level for p in check("{context: {max_device_memory: 58}}").problems] == [Level.ERROR]
    (problem,) = check("{context: {max_device_memory: 58}}", is_training_start=True).problems
    assert problem.level is Level.WARNING and problem.allowed == 'a string such as "58GB"; GB is GiB there'


def test_a_budget_above_it_is_a_warning():
    """30 GB are 30 GiB; a plan for 40 GiB would run out of memory."""
    assert found(TEXT % ("30GB", ", mindswap: {memory: 30GiB}")) == []
    (problem,) = check(TEXT % ("30GB", ", mindswap: {memory: 40GiB}")).problems
    assert (problem.level, problem.fix) == (
        Level.WARNING,
        'context.max_device_memory: "40GB", or memory: 30.0 GiB and mindswap plan again',
    )
    assert problem.message == (
        "mindswap.memory: '40GiB' is more than the 30.0 GiB of context.max_device_memory (x.yaml:1:31)"
    )


# Rule `memory-optimize-level`.


@pytest.mark.parametrize("value", ["O1", "1", "0", "[O0]"])
def test_other_values_are_reported_memory_optimize_level(value):
    text = f"{{swap_config: {{swap: True}}, context: {{memory_optimize_level: {value}}}}}"
    assert found(text) == [(1, 62, "memory-optimize-level")]


@pytest.mark.parametrize("value", ["O0", "'O0'", "null"])
def test_the_right_value_passes_memory_optimize_level(value):
    assert found(f"{{swap_config: {{swap: True}}, context: {{memory_optimize_level: {value}}}}}") == []


def test_a_missing_key_passes_memory_optimize_level():
    assert found("{swap_config: {swap: True}, context: {}}") == []
