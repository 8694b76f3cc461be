"""Pairs of versions, planted as distributions of their own on the path of Python."""

import pytest

from mindswap.errors import LaunchError
from mindswap.rules.machine.software import (
    ANY_VERSION,
    SUPPORTED_PAIRS,
    installed_code,
    is_supported_pair,
    require_mindformers,
    suggest_pair,
)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Puts packages of these versions in front of all others."""
    monkeypatch.delenv(ANY_VERSION, raising=False)

    def plant(**versions):
        for name, version in versions.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").touch()
            info = tmp_path / f"{name}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    return plant


def test_an_unknown_pair_says_what_to_install(installed):
    installed(mindformers="1.8.0", mindspore="2.9.0")
    with pytest.raises(LaunchError) as error:
        require_mindformers()
    assert str(error.value) == (
        "mindformers 1.8.0 with mindspore 2.9.0: mindswap was never tried with this pair\n"
        "    fix: pip install mindspore==2.7.2, which belongs to it; MINDSWAP_ANY_VERSION=1 tries it all the same"
    )


def test_versions_nobody_knows(installed):
    installed(mindformers="3.0.0", mindspore="3.0.0")
    with pytest.raises(LaunchError, match=r"fix: pip install mindformers==1\.9\.0 mindspore==2\.9\.0; "):
        require_mindformers()


def test_an_unknown_pair_is_tried_on_demand(installed, monkeypatch):
    installed(mindformers="1.8.0", mindspore="2.9.0")
    monkeypatch.setenv(ANY_VERSION, "1")
    require_mindformers()


@pytest.mark.parametrize(
    "pair", [pair for pair in SUPPORTED_PAIRS if pair.mindformers], ids=lambda pair: pair.mindformers
)
def test_a_known_pair_passes(installed, pair):
    installed(mindformers=pair.mindformers, mindspore=pair.mindspore)
    require_mindformers()


def test_a_fourth_number_makes_no_difference():
    assert is_supported_pair("1.7.0", "2.7.1.post1") and not is_supported_pair("1.9.0", "2.7.1")
    assert suggest_pair("1.7.0") == "pip install mindspore==2.7.1, which belongs to it"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A package in a folder of its own, with a version beside it in another."""
    for folder in ("site", "checkout/planted"):
        (tmp_path / folder).mkdir(parents=True)
    info = tmp_path / "site/planted-1.9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.9.0\n")
    (info / "RECORD").write_text("planted/__init__.py,,\n")
    (tmp_path / "checkout/planted/__init__.py").touch()
    (tmp_path / "checkout/planted/deep.py").write_text("A = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path / "checkout"


def test_code_of_a_release_is_its_version(checkout):
    (checkout / "planted").rename(checkout.parent / "site/planted")
    assert installed_code("planted") == "1.9.0"
    assert installed_code("not_planted") == ""


def test_code_of_a_checkout_is_the_state_of_its_files(checkout, monkeypatch):
    """Also of one that is installed as editable: its version stays."""
    monkeypatch.syspath_prepend(str(checkout))
    before = installed_code("planted")
    assert before not in ("", "1.9.0") and installed_code("planted") == before
    (checkout / "planted/deep.py").write_text("A = 23\n")
    assert installed_code("planted") != before
