"""What cannot be compiled is refused at once, with its place and what to do instead."""

import os
import re
import shutil
from pathlib import Path

import pytest

from mindswap.config.source import load_document
from mindswap.errors import GraphError
from mindswap.features.inspect import inspect_memory
from mindswap.features.step import load_step
from mindswap.features.verify import NO_REQUEST, verify
from mindswap.steps import compile_cache as cache
from mindswap.steps.recorded import require_compilable

PYNATIVE = """context:
  mode: 1
  device_target: CPU
model: {model_config: {type: LlamaConfig, num_layers: 2}}
swap_config: {swap: True, op_swap: [{op_name: attention, backward_prefetch: 1, layers: [0]}]}
"""


def write(tmp_path, text):
    path = tmp_path / "main.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("read", "instead"),
    [(inspect_memory, "mindswap trace"), (load_step, "mindswap trace"), (verify, "the log of `mindswap run`")],
)
def test_pynative_mode_has_no_compiled_graph_to_read(tmp_path, read, instead):
    path = write(tmp_path, PYNATIVE)
    with pytest.raises(GraphError, match=re.escape(f"{path}:2:9: context.mode: 1: no graph is compiled")) as caught:
        read(path)
    assert instead in str(caught.value)
    assert "mode: 0" in str(caught.value)


def test_with_nothing_asked_there_is_nothing_to_refuse(tmp_path):
    path = write(tmp_path, PYNATIVE.replace("swap: True", "swap: False"))
    found = verify(path)
    assert (found.text, found.matches_policy, found.data["ok"]) == (NO_REQUEST, True, True)


@pytest.mark.parametrize("read", [inspect_memory, load_step])
def test_a_file_without_a_model_says_so_before_mindformers_is_asked(tmp_path, read):
    # As configs/general/run_general_task.yaml of MindFormers 1.9.0: no class, no number of layers, no folder.
    path = write(tmp_path, "model:\n  model_config:\n    max_decode_length: 8\n")
    with pytest.raises(GraphError, match=re.escape(f"{path}:3:5: model.model_config: it describes no model")):
        read(path)


@pytest.mark.parametrize("read", [inspect_memory, load_step])
def test_a_folder_that_is_not_there_is_named_though_the_layers_are_known(tmp_path, read):
    # As configs/deepseek3/finetune_deepseek3_12b_16p_pp16.yaml: 16 layers, and the rest in the folder.
    path = write(tmp_path, "pretrained_model_dir: /no/such\nmodel: {model_config: {num_hidden_layers: 16}}\n")
    with pytest.raises(GraphError, match=re.escape(f"{path}:1:23: pretrained_model_dir: the model is not known")):
        read(path)


def test_a_class_without_a_number_of_layers_is_left_to_mindformers(tmp_path):
    require_compilable(load_document(write(tmp_path, "model: {model_config: {type: LlamaConfig}}\n")))


@pytest.mark.parametrize("read", [inspect_memory, load_step, verify])
def test_a_file_for_inference_is_refused_before_anything_is_compiled(tmp_path, read):
    """MindFormers takes attention of its inference then, which has no training step."""
    path = write(
        tmp_path, PYNATIVE.replace("mode: 1", "mode: 0").replace("num_layers: 2", "num_layers: 2, use_past: True")
    )
    with pytest.raises(GraphError, match=re.escape(f"{path}:4:68: model.model_config.use_past: True: the file is for")):
        read(path)


# What a kept result depends on.


PACKAGE = Path(cache.__file__).parents[1]


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of the package, which the cache takes for the one that is installed."""
    shutil.copytree(PACKAGE, tmp_path / "mindswap", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "mindswap" / "steps" / "compile_cache.py"))
    return tmp_path / "mindswap"


def test_a_checkout_beside_has_the_same_key(copy):
    path = copy / "graph" / "ops.py"
    os.utime(path, (1, 1))
    there = cache._versions()
    path.write_text(path.read_text() + "\n# another rule\n")
    assert there != cache._versions()


def test_the_installed_package_and_a_copy_agree(copy, monkeypatch):
    there = cache._versions()
    monkeypatch.undo()
    assert there == cache._versions()


def test_the_table_of_operators_has_a_say(copy):
    before = cache._versions()
    path = copy / "data" / "graph" / "operators.json"
    path.write_text(path.read_text() + "\n")
    assert cache._versions() != before


@pytest.mark.parametrize("room", cache.NOT_IN_CACHE_KEY)
def test_a_room_without_a_say_exists_and_changes_nothing(copy, room):
    before = cache._versions()
    file = copy / room if room.endswith(".py") else min((copy / room).glob("*.py"))
    file.write_text(file.read_text() + "\n# changed\n")
    assert cache._versions() == before


@pytest.mark.parametrize("file", cache.IN_CACHE_KEY)
def test_a_file_of_a_room_without_a_say_counts(copy, file):
    before = cache._versions()
    (copy / file).write_text((copy / file).read_text() + "\n# changed\n")
    assert cache._versions() != before


@pytest.mark.parametrize("package", ["adapters", "graph", "steps", "policy", "config"])
def test_what_makes_a_captured_step_reads_nothing_else_of_the_simulator(package):
    """The form of a captured step is in the key; how it is simulated is not."""
    imports = re.compile(r"^ *(?:from|import) mindswap\.simulator(?:\.(?P<module>[\w.]+))?", re.M)
    texts = [path.read_text() for path in sorted((PACKAGE / package).rglob("*.py"))]
    read = {match["module"] for text in texts for match in imports.finditer(text)}
    assert read <= {"captured_step"}


def test_variables_that_change_a_compile_count_and_those_that_a_compile_sets_do_not():
    asked = {"ENABLE_LAZY_INLINE_NO_PIPELINE": "0", "MS_DEV_RUNTIME_CONF": "switch_inline:False"}
    others = {"HOME": "/root", "MS_DEV_JIT_SYNTAX_LEVEL": "0", "MS_DEV_SAVE_GRAPHS": "1"}
    assert cache._compile_variables({**asked, **others}) == asked
