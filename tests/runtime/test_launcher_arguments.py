import pytest

from mindswap.errors import LaunchError, PolicyError
from mindswap.runtime.launcher_arguments import Job, parse_arguments
from mindswap.runtime.training_command import check_configuration

ORDER = "run_mindformer.py --config x.yaml"


@pytest.mark.parametrize(
    ("words", "job"),
    [
        ([], Job(ORDER)),
        (["4"], Job(ORDER, num_workers=4, num_local_workers=4)),
        (["1"], Job(ORDER, num_workers=1, num_local_workers=1)),
        (
            ["4", "8200", "logs", "True", "60"],
            Job(ORDER, 4, 4, master_port=8200, log_dir="logs", join=True, timeout_s=60),
        ),
        (
            ["8", "8", "10.0.0.7", "8118", "0", "output/msrun", "False", "300"],
            Job(ORDER, 8, 8, "10.0.0.7", 8118, 0, "output/msrun", False, 300),
        ),
        (
            ["16", "8", "host-a", "8118", "1", "output/msrun", "False", "-1"],
            Job(ORDER, 16, 8, "host-a", 8118, 1, "output/msrun", False, -1),
        ),
    ],
)
def test_forms(words, job):
    assert parse_arguments([ORDER, *words]) == job


def test_defaults_are_those_of_upstream():
    job = parse_arguments([ORDER])
    assert (job.num_workers, job.master_addr, job.master_port) == (8, "127.0.0.1", 8118)
    assert (job.log_dir, job.join, job.timeout_s) == ("output/msrun_log", False, 7200)


@pytest.mark.parametrize(
    ("num_workers", "num_local", "node", "ranks"),
    [(8, 8, 0, range(8)), (16, 8, 1, range(8, 16)), (16, 8, -1, range(8))],
)
def test_ranks_of_this_machine(num_workers, num_local, node, ranks):
    assert Job("x", num_workers, num_local, node_rank=node).ranks == ranks


@pytest.mark.parametrize("count", [0, 3, 4, 5, 7, 8, 10])
def test_other_counts_are_refused(count):
    with pytest.raises(LaunchError, match=f"^{count} arguments\n    allowed: 1, 2, 6 or 9"):
        parse_arguments(["1"] * count)


NINE = dict(
    EXECUTE_ORDER=ORDER, WORKER_NUM="8", LOCAL_WORKER="4", MASTER_ADDR="h", MASTER_PORT="8118",
    NODE_RANK="0", LOG_DIR="logs", JOIN="True", CLUSTER_TIME_OUT="60",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("EXECUTE_ORDER", " "),
        ("WORKER_NUM", "0"),
        ("WORKER_NUM", "8.0"),
        ("WORKER_NUM", "٨"),
        ("WORKER_NUM", ""),
        ("LOCAL_WORKER", "all"),
        ("LOCAL_WORKER", "-4"),
        ("MASTER_ADDR", ""),
        ("MASTER_PORT", "80"),
        ("MASTER_PORT", "65536"),
        ("MASTER_PORT", "8118 "),
        ("NODE_RANK", "-2"),
        ("NODE_RANK", "first"),
        ("LOG_DIR", ""),
        ("JOIN", "true"),
        ("JOIN", "1"),
        ("CLUSTER_TIME_OUT", "5min"),
        ("CLUSTER_TIME_OUT", "9" * 20),
    ],
)
def test_wrong_words_are_named(name, word):
    with pytest.raises(LaunchError, match="(?s)^" + name + " is .*allowed: "):
        parse_arguments(list({**NINE, name: word}.values()))


@pytest.mark.parametrize(
    ("total", "local", "node", "message"),
    [
        ("4", "8", "0", "LOCAL_WORKER is 8, WORKER_NUM is 4"),
        ("12", "8", "1", "the same number of workers on every machine"),
        ("16", "8", "2", "NODE_RANK is 2\n    allowed: 0 to 1"),
        ("8", "8", "1", "NODE_RANK is 1\n    allowed: a larger WORKER_NUM, or 0"),
    ],
)
def test_counts_that_do_not_fit_together(total, local, node, message):
    with pytest.raises(LaunchError, match=message):
        parse_arguments(list({**NINE, "WORKER_NUM": total, "LOCAL_WORKER": local, "NODE_RANK": node}.values()))


def test_all_problems_come_at_once():
    with pytest.raises(LaunchError) as error:
        parse_arguments(["x", "a", "1", "l", "yes", "b"])
    assert [line.split()[0] for line in str(error.value).splitlines() if not line.startswith(" ")] == [
        "WORKER_NUM", "MASTER_PORT", "JOIN", "CLUSTER_TIME_OUT",
    ]  # fmt: skip


# Which configurations stop a launch before it begins.


BAD = "swap_config:\n  swap: True\n  layer_swap: 3\n"


def command(path, *options):
    return ["-m", "mindswap", "run", "--config", str(path), *options]


@pytest.fixture
def bad(tmp_path):
    (tmp_path / "bad.yaml").write_text(BAD)
    return tmp_path / "bad.yaml"


@pytest.mark.parametrize("options", [(), ("--run_mode", "train"), ("--run_mode=finetune",)])
def test_a_wrong_configuration_stops_a_training(bad, options):
    with pytest.raises(PolicyError):
        check_configuration(command(bad, *options), 1)


@pytest.mark.parametrize("options", [("--run_mode", "predict"), ("--run_mode=eval",), ("--swap_config.swap", "False")])
def test_other_runs_and_changed_configurations_go_on(bad, options):
    check_configuration(command(bad, *options), 1)


def test_the_run_mode_of_the_file_counts(tmp_path):
    (tmp_path / "predict.yaml").write_text("run_mode: predict\n" + BAD)
    check_configuration(command(tmp_path / "predict.yaml"), 1)


def test_operator_names_are_left_to_the_real_network(tmp_path):
    text = r"""
model: {arch: {type: LlamaForCausalLM}, model_config: {num_layers: 2}}
swap_config: {swap: True, op_swap: [{op_name: 'feed_forward\.router', backward_prefetch: 1, layers: [0]}]}
"""
    (tmp_path / "moe.yaml").write_text(text)
    check_configuration(command(tmp_path / "moe.yaml"), 1)


PARALLEL = """
use_parallel: {use_parallel}
parallel: {{parallel_mode: {mode}}}
parallel_config: {{{sizes}}}
model: {{model_config: {{num_layers: 4}}}}
"""
SIZES = "data_parallel: 2, model_parallel: 2, pipeline_stage: 2, expert_parallel: 4"


def check_workers(tmp_path, num_workers, *options, sizes=SIZES, use_parallel=True, mode=1):
    path = tmp_path / "x.yaml"
    path.write_text(PARALLEL.format(use_parallel=use_parallel, mode=mode, sizes=sizes))
    check_configuration(command(path, *options), num_workers)


@pytest.mark.parametrize(
    ("num_workers", "sizes", "product", "fix"),
    [
        (16, SIZES, "8 workers (data_parallel 2 x model_parallel 2 x pipeline_stage 2)", "8, or data_parallel: 4"),
        (6, SIZES, "8 workers (data_parallel 2 x model_parallel 2 x pipeline_stage 2)", "8"),
        (1, SIZES, "8 workers (data_parallel 2 x model_parallel 2 x pipeline_stage 2)", "8"),
        (8, "model_parallel: 2, context_parallel: 2", "4 workers (model_parallel 2 x context_parallel 2)",
         "4, or data_parallel: 2"),
        (8, "micro_batch_num: 4", "1 worker (1)", "1, or data_parallel: 8"),
    ],
)  # fmt: skip
def test_the_workers_are_as_many_as_the_file_is_for(tmp_path, num_workers, sizes, product, fix):
    """Experts are spread over the others. Before any worker starts: each would stop after minutes."""
    with pytest.raises(LaunchError) as error:
        check_workers(tmp_path, num_workers, sizes=sizes)
    assert str(error.value) == (
        f"{tmp_path / 'x.yaml'}:4:18: parallel_config is for {product}, and WORKER_NUM is {num_workers}\n"
        f"    fix:     WORKER_NUM {fix}"
    )


def test_an_option_decides_whether_the_workers_count(tmp_path):
    check_workers(tmp_path, 8)
    check_workers(tmp_path, 1, "--use_parallel", "False")
    check_workers(tmp_path, 1, use_parallel=False)
    check_workers(tmp_path, 4, mode=0)
    check_workers(tmp_path, 4, "--parallel_config.data_parallel", "1")
    with pytest.raises(LaunchError):
        check_workers(tmp_path, 1, "--use_parallel", "True", use_parallel=False)
