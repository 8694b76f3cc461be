import pytest

from mindswap.config.nodes import to_data
from mindswap.config.source import load_document


@pytest.fixture
def write(tmp_path):
    def write_files(**files):
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return load_document(tmp_path / "main.yaml")

    return write_files


def rules(document):
    return [p.rule for p in document.problems]


def test_a_file_without_base(write):
    assert to_data(write(main="a: 1").root) == {"a": 1}


def test_the_file_is_merged_into_its_base_key_by_key(write):
    main = "base_config: base.yaml\na: {x: 2, z: 3}\nb: [9]\n"
    document = write(main=main, base="a: {x: 1, y: 1}\nb: [1, 2]\nc: 4\n")
    assert to_data(document.root) == {"a": {"x": 2, "y": 1, "z": 3}, "b": [9], "c": 4}


def test_every_value_keeps_the_file_it_stands_in(write):
    document = write(main="base_config: sub/base.yaml\na: {x: 2}\n", sub__base="\na: {y: 1}\n")
    assert document.get("a", "x").location.file.endswith("main.yaml")
    assert document.get("a", "y").location.file.endswith("sub/base.yaml")
    assert document.get("a", "y").location.line == 2


def test_of_several_bases_a_later_one_replaces_whole_sections(write):
    document = write(main="base_config: [one.yaml, two.yaml]\n", one="a: {x: 1}\nb: 1\n", two="a: {y: 2}\n")
    assert to_data(document.root) == {"a": {"y": 2}, "b": 1}


def test_a_base_has_a_base_relative_to_its_own_folder(write):
    document = write(main="base_config: sub/one.yaml\n", sub__one="base_config: two.yaml\na: 1\n", sub__two="b: 2\n")
    assert to_data(document.root) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "files",
    [
        {"main": "base_config: main.yaml\na: 1"},
        {"main": "base_config: one.yaml\na: 1", "one": "base_config: main.yaml\nb: 1"},
    ],
)
def test_a_loop_is_found(write, files):
    document = write(**files)
    assert rules(document) == ["base-config"]
    assert to_data(document.root)["a"] == 1


def test_a_missing_base_is_reported_and_the_rest_is_read(write):
    document = write(main="base_config: none.yaml\na: 1")
    assert rules(document) == ["yaml-file"]
    assert to_data(document.root) == {"a": 1}


@pytest.mark.parametrize("value", ["3", "[1]", "{a: b}", "''", "null"])
def test_a_base_that_is_no_path(write, value):
    assert rules(write(main=f"base_config: {value}\na: 1")) == ["base-config"]


def test_files_that_name_each_other_many_times_are_read_once(write):
    files = {f"f{i}": f"base_config: [{', '.join([f'f{i + 1}.yaml'] * 10)}]\nk{i}: 1\n" for i in range(30)}
    document = write(main="base_config: f0.yaml", f30="last: 1", **files)
    assert document.problems == ()
    assert len(document.root.entries) == 31


def test_an_endless_chain_of_files_is_cut(write):
    document = write(main="base_config: f0.yaml", **{f"f{i}": f"base_config: f{i + 1}.yaml" for i in range(200)})
    assert rules(document) == ["base-config"]


def test_duplicates_and_problems_of_the_base_are_kept(write):
    document = write(main="base_config: base.yaml\na: 1", base="b: 1\nb: 2\nc: *none\n")
    assert [d.path for d in document.duplicates] == ["b"]
    assert rules(document) == ["yaml-alias"]
