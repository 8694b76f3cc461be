from tests.builders import check


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
