"""Stand-ins: what a wheel asks for, and the C text that answers."""

import ctypes
import os
import shutil
import subprocess
import time

import pytest

from mindswap.errors import LaunchError
from mindswap.features.dryrun import cann_stand_ins as stub_libraries
from mindswap.features.dryrun.cann_stand_ins import cpp_path, read_library


@pytest.mark.parametrize(
    ("mangled", "path"),
    [
        ("aclInit", []),
        ("_ZN2ge15OperatorFactory14CreateOperatorERKSsS2_", ["ge", "OperatorFactory", "CreateOperator"]),
        ("_ZNK2ge8Operator7GetNameB5cxx11Ev", ["ge", "Operator", "GetName"]),
        ("_ZN2ge8OperatorC2ERKS0_", ["ge", "Operator", "Operator"]),
        ("_ZTVN2ge8OperatorE", ["ge", "Operator"]),
    ],
)
def test_names_of_a_cpp_symbol(mangled, path):
    assert cpp_path(mangled) == path


@pytest.fixture
def compiler():
    try:
        return stub_libraries.find_compiler()
    except LaunchError:
        pytest.skip("no C compiler")


def test_what_a_library_defines_and_asks_for(tmp_path, compiler):
    source = tmp_path / "a.c"
    source.write_text("extern int aclInit(void); int ours(void) { return aclInit() + 1; }\n")
    words = [*compiler, "-shared", "-fPIC", "-o", tmp_path / "a.so", source, "-Wl,--no-as-needed", "-lm"]
    subprocess.run(words, check=True)
    library = read_library(tmp_path / "a.so")
    assert "ours" in library.defined and "aclInit" in library.undefined
    assert "aclInit" not in library.defined
    assert any(name.startswith("libm.so") for name in library.needed)


def test_a_file_that_is_no_library(tmp_path):
    (tmp_path / "a.so").write_text("INPUT(libb.so)")
    with pytest.raises(ValueError, match="not an ELF file"):
        read_library(tmp_path / "a.so")


def test_the_c_text_compiles_and_answers(tmp_path, compiler):
    functions = ["_ZN2ge8OperatorC2ERKS0_", "_ZNK2ge8Operator7GetNameB5cxx11Ev", "aclrtGetDeviceCount", "HcclSend"]
    functions.append("_ZN2ge13StatusFactory8InstanceEv")
    source = tmp_path / "cann.c"
    source.write_text(stub_libraries.c_source(functions, {"aclnnAdd", "aclrtGetDeviceCount"}))
    subprocess.run([*compiler, "-w", "-shared", "-fPIC", "-o", tmp_path / "cann.so", source], check=True)
    assert {*functions, "aclnnAdd", "aclnnAddGetWorkspaceSize"} <= read_library(tmp_path / "cann.so").defined
    library, number = ctypes.CDLL(str(tmp_path / "cann.so")), ctypes.c_uint()
    assert (library.aclrtGetDeviceCount(ctypes.byref(number)), number.value, library.HcclSend()) == (0, 8, 0)
    version = ctypes.create_string_buffer(576)
    assert library.aclsysGetCANNVersion(0, version) == 0
    assert (version.value, version[128:130], version[192:194]) == (b"8.3.0", b"8\0", b"3\0")
    # An empty std::map: its head (at 8: colour, parent, left, right) is its own first and last; set once.
    factory = library["_ZN2ge13StatusFactory8InstanceEv"]
    factory.restype = ctypes.POINTER(ctypes.c_void_p)
    head = factory()
    assert head[:6] == [None, None, None, ctypes.addressof(head.contents) + 8, head[3], None]
    head[2] = head[3] = 7
    assert factory()[2:4] == [7, 7]
    words = (ctypes.c_void_p * 3)(7, 7, 7)
    library["_ZN2ge8OperatorC2ERKS0_"](words)  # leaves the table of virtual functions, which the derived class sets
    assert list(words) == [7, None, None]


def test_what_is_loaded_first_answers_16_processors_and_lets_who_waits_for_reports_wait(tmp_path, compiler):
    stub_libraries.compile_preloaded(compiler, tmp_path / "preloaded.so")
    library = ctypes.CDLL(str(tmp_path / "preloaded.so"))
    assert library.get_nprocs() == library.sysconf(os.sysconf_names["SC_NPROCESSORS_ONLN"]) == 16
    assert library.sysconf(os.sysconf_names["SC_PAGESIZE"]) == os.sysconf("SC_PAGESIZE")
    began_s = time.perf_counter()
    assert library["_ZN9mindspore6device6ascend27SimuFuncIaclrtProcessReportIiEET_i"](-1) == 0
    assert time.perf_counter() - began_s > 0.009


def test_no_compiler(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(stub_libraries.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(LaunchError, match="pip install ziglang"):
        stub_libraries.find_compiler()


def test_a_mindspore_without_the_ascend_backend(tmp_path, monkeypatch):
    class Spec:
        origin = str(tmp_path / "mindspore" / "__init__.py")

    monkeypatch.setattr(stub_libraries.importlib.util, "find_spec", lambda _: Spec)
    with pytest.raises(LaunchError, match="no Ascend backend"):
        stub_libraries.mindspore_libraries()
