import stat

import pytest
import yaml

from mindswap import cli
from mindswap.config.source import load_document
from mindswap.errors import DataError
from mindswap.features.convert import cli as convert
from mindswap.files import write_new
from mindswap.rules.checker import check_document, load_policy
from mindswap.steps import network
from tests.schema import answer_of

STAGE_TEXT = """\
# my run
context: {mode: 0, memory_optimize_level: "O0"}
parallel_config:
  pipeline_stage: 2   # two
model:
  arch: {type: LlamaForCausalLM}
  model_config: {type: LlamaConfig, num_layers: 8, use_flash_attention: True}
swap_config:
  swap: False  # not yet
recompute_config:   # counts
  recompute: [1, 2]   # per stage

  mp_comm_recompute: True
# the end
"""
INDEX_TEXT = (
    STAGE_TEXT.replace("swap: False  # not yet", "swap: True  # not yet\n  op_swap: []")
    .replace("[1, 2]", "[0, 4, 5]")
    .replace(
        "recompute_config:   # counts",
        "# mindswap: layer indices, from counts per pipeline stage (mindswap convert --to index)\n"
        "recompute_config:   # counts",
    )
)


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="x.yaml"):
        path = tmp_path / name
        path.write_bytes(text.encode())
        return str(path)

    return write_file


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setattr(network, "has_mindformers", lambda: False)

    def run_convert(*arguments):
        code = cli.main(["convert", *map(str, arguments)])
        captured = capsys.readouterr()
        assert "a bug" not in captured.err and "Traceback" not in captured.err, captured.err
        return code, captured.out, captured.err

    return run_convert


def test_to_index_keeps_the_file_and_passes_check(run, write, tmp_path):
    code, out, err = run(write(STAGE_TEXT), "--to", "index", "-o", tmp_path / "new.yaml")
    new = tmp_path / "new.yaml"
    assert (code, out, err) == (0, f"written: {new}; next: mindswap check {new}\n", "")
    assert new.read_text() == INDEX_TEXT
    assert check_document(load_document(tmp_path / "new.yaml")).problems == ()


def test_in_place_keeps_line_ends_and_mode(run, write, tmp_path):
    path = write(STAGE_TEXT.replace("\n", "\r\n"))
    (tmp_path / "x.yaml").chmod(0o640)
    assert run(path, "--to", "index", "--in-place")[0] == 0
    assert (tmp_path / "x.yaml").read_bytes() == INDEX_TEXT.replace("\n", "\r\n").encode()
    assert stat.S_IMODE((tmp_path / "x.yaml").stat().st_mode) == 0o640


def test_a_file_that_is_there_stays(run, write, tmp_path):
    other = write("precious", "new.yaml")
    code, _, err = run(write(STAGE_TEXT), "--to", "index", "-o", other)
    assert code == 1 and "already exists" in err and (tmp_path / "new.yaml").read_text() == "precious"
    assert run(write(STAGE_TEXT), "--to", "index", "-o", other, "--overwrite")[0] == 0
    assert (tmp_path / "new.yaml").read_text() == INDEX_TEXT


def test_what_cannot_be_converted_changes_nothing(run, write, tmp_path):
    path = write(INDEX_TEXT)
    code, out, err = run(path, "--to", "index", "--in-place")
    assert (code, out) == (1, "")
    assert "swap_config.swap: swap is on, so recompute_config is in layer indices already" in err
    assert (tmp_path / "x.yaml").read_text() == INDEX_TEXT


def test_a_result_that_check_refuses_is_written_and_said(run, write, tmp_path):
    path = write(STAGE_TEXT.replace("mode: 0", "max_device_memory: 58"))
    code, out, err = run(path, "--to", "index", "-o", tmp_path / "new.yaml")
    assert code == 1
    assert err.startswith(f"{tmp_path}/new.yaml:2:30: error: context.max_device_memory: 58: MindSpore stops at it")
    assert (tmp_path / "new.yaml").exists() and out.startswith("written: ")


def test_what_swap_needs_is_written_too(run, write, tmp_path):
    code, _, err = run(write(STAGE_TEXT.replace('"O0"', '"O1"')), "--to", "index", "-o", tmp_path / "new.yaml")
    assert (code, err) == (0, "")
    level = (
        "# mindswap: swap needs memory_optimize_level O0; it was 'O1'\ncontext: {mode: 0, memory_optimize_level: 'O0'}"
    )
    assert level in (tmp_path / "new.yaml").read_text()


def test_a_folder_that_is_not_there_is_refused_and_not_made(run, write, tmp_path):
    code, _, err = run(write(STAGE_TEXT), "--to", "index", "-o", tmp_path / "no" / "new.yaml")
    assert code == 1 and f"there is no folder {tmp_path / 'no'}" in err and not (tmp_path / "no").exists()


def test_megatron_without_a_file(run):
    code, out, err = run("--from", "megatron", "--num-layers", "4", "--recompute-activations")
    assert (code, err) == (0, "")
    assert yaml.safe_load(out) == {
        "swap_config": {"swap": True, "op_swap": []},
        "recompute_config": {"recompute": False, "select_recompute": {r"attention\.flash_attention\..*": True}},
    }
    assert "# mindswap: from Megatron-LM\n# mindswap: recompute core_attn:" in out
    out = run("--from", "megatron", "--num-layers", "4", "--recompute-activations", "--family", "qwen3")[1]
    assert r"'self_attention\.core_attention\.flash_attention': True" in out


def test_megatron_into_a_file(run, write):
    options = ("--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers", "2")
    code, out, err = run("--from", "megatron", *options, "--pipeline-model-parallel-size", "2", write(STAGE_TEXT))
    assert (code, err) == (0, "")
    assert "  recompute: [0, 1, 4, 5]   # per stage\n" in out
    assert "# mindswap: full recompute, block 2: layers 0-1, 4-5\n" in out


def test_groups_are_written_and_read_back(run, write, tmp_path):
    options = ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "4")
    assert run("--from", "megatron", *options, write(STAGE_TEXT), "-o", tmp_path / "new.yaml")[0] == 0
    policy = load_policy(tmp_path / "new.yaml")
    assert policy.layer_recompute.indices is None
    assert policy.output_recompute.indices == (0, 1, 2, 4, 5, 6)


def test_another_pipeline_in_the_file_is_a_warning(run, write):
    options = ("--recompute-granularity", "full", "--recompute-method", "block")
    code, _, err = run("--from", "megatron", *options, write(STAGE_TEXT))
    assert code == 0
    assert "x.yaml:4:19: warning: parallel_config.pipeline_stage: the stages are not those of Megatron" in err


def test_offloading_keeps_the_recompute_of_the_file(run, write, tmp_path):
    options = ("--fine-grained-activation-offloading", "--offload-modules", "core_attn", "--backward-prefetch", "10")
    assert run("--from", "megatron", *options, "-o", tmp_path / "new.yaml", "--", write(STAGE_TEXT))[0] == 0
    policy = load_policy(tmp_path / "new.yaml")
    assert policy.layer_recompute.indices == (0, 4, 5)
    assert [(swap.pattern, swap.prefetch) for swap in policy.op_swap] == [
        (r"attention\.apply_rotary_emb\.add", 10),
        (r"attention\.transpose", 10),
    ]


def test_recompute_keeps_the_swap_of_the_file(run, write, tmp_path):
    text = STAGE_TEXT.replace("swap: False  # not yet", "swap: True\n  default_prefetch: 7").replace("[1, 2]", "[3]")
    path = write(text)
    run(
        "--from",
        "megatron",
        "--recompute-granularity",
        "selective",
        "--recompute-modules",
        "mlp",
        "--in-place",
        "--",
        path,
    )
    policy = load_policy(path)
    assert policy.default_prefetch == 7 and not policy.layer_recompute
    assert [entry.pattern for entry in policy.select_recompute] == ["feed_forward"]


def test_a_launch_script_with_a_value_of_the_command_line(run, write):
    script = write("N=$2\nARGS='--recompute-activations'\npython x.py --num-layers $N $ARGS $MORE\n", "run.sh")
    code, _, err = run("--from", "megatron", "--from-args", script)
    assert code == 1
    assert f"{script}:3:1: error: --num-layers: $2 is not known" in err
    code, out, err = run("--from", "megatron", "--from-args", script, "--num-layers", "4")
    assert code == 0 and "select_recompute" in out
    assert "warning: $MORE: its value is not known" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "choose a conversion: --to index, 2.x or 1.9, or --from megatron"),
        (["--to", "index"], "CONFIG is missing"),
        (["run.sh", "--from", "megatron"], "--from-args run.sh"),
        (["--to", "index", "--from", "megatron"], "--to has no meaning with --from megatron"),
        (["--to", "index", "x.yaml", "--recompute-activations"], "--recompute-activations needs --from megatron"),
        (["--from", "megatron", "--in-place"], "--in-place needs CONFIG"),
        (["--to", "index", "none.yaml"], "the file does not exist"),
        (["--from", "megatron", "--from-args", "none.sh"], "none.sh: cannot be read"),
        (["--from", "megatron", "--recompute-activations"], "--num-layers: is needed"),
        (["--from", "megatron", "--num-layers", "x"], "--num-layers: x is not a number from 1"),
    ],
)
def test_what_does_not_go_together(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (1, "") and message in err


def test_layers_that_differ_are_refused(run, write):
    code, _, err = run("--from", "megatron", "--num-layers", "6", "--recompute-activations", write(STAGE_TEXT))
    assert code == 1 and "--num-layers 6:" in err and "has 8 layers" in err


def test_the_number_of_layers_can_be_given(run, write):
    text = STAGE_TEXT.replace("num_layers: 8, ", "")
    assert "--num-layers N" in run(write(text), "--to", "index")[2]
    assert "recompute: [0, 4, 5]" in run(write(text), "--to", "index", "--num-layers", "8")[1]


def test_a_section_of_another_file_is_refused(run, write):
    write("recompute_config: {recompute: [1, 2]}\n", "base.yaml")
    text = "base_config: base.yaml\n" + STAGE_TEXT[: STAGE_TEXT.index("recompute_config")]
    code, _, err = run(write(text), "--to", "index")
    assert code == 1 and "a part of it is in another file" in err


def test_json(run, write):
    code, out, _ = run(write(STAGE_TEXT), "--to", "index", "--json")
    data = answer_of(out)
    assert code == 0 and data["ok"] is True and data["written"] is None and data["text"] == INDEX_TEXT
    assert data["sections"]["recompute_config"]["recompute"] == [0, 4, 5]


def test_examples_are_options_that_exist(run, capsys):
    assert cli.main(["convert", "--help"]) == 0
    text = capsys.readouterr().out
    for line in convert.EPILOG.split():
        assert not line.startswith("--") or line in text
    assert run("--from", "megatron", "--num-layers", "32", "--recompute-activations")[0] == 0


def test_write_new_follows_a_link_and_refuses_a_folder(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_new(tmp_path / "link", "new", overwrite=True)
    assert (tmp_path / "real").read_text() == "new" and (tmp_path / "link").is_symlink()
    with pytest.raises(DataError, match="already exists"):
        write_new(tmp_path, "new")


@pytest.mark.parametrize("to", ["index", "2.x"])
def test_a_number_of_layers_that_is_none_or_another_is_refused(run, write, to):
    assert (
        "--num-layers: 'x': expected an integer between 1" in run(write(STAGE_TEXT), "--to", to, "--num-layers", "x")[2]
    )
    assert "has 8 layers" in run(write(STAGE_TEXT), "--to", to, "--num-layers", "4")[2]
