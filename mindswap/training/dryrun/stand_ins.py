"""Stand-ins for the libraries of CANN, so that MindSpore's Ascend backend loads without it.

Every function that the installed wheel asks for is defined in one C file, made from the wheel's own undefined symbols.
In a dry run (`MS_SIMULATION_LEVEL`) their answers do not matter, but for a few: how many devices, memory, handles.
"""

import ctypes
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from mindswap.errors import LaunchError
from mindswap.files import made_once
from mindswap.graph.cache import cache_folder
from mindswap.training.dryrun.symbols import Library, cpp_path, find_texts, read_library

# Part of the key of what is kept: to be raised when the C text changes.
VERSION = 5
# MindSpore takes the path of a library up to this word for CANN's home (GetAscendPath).
HOME = "cann"
# Libraries that MindSpore opens itself, beside those that it is linked against.
_OPENED = ("libacl_op_compiler.so", "libacl_tdt_channel.so")
# C functions whose answer matters; everything else returns 0.
_ANSWERS = {
    "aclrtGetDeviceCount": "int f(unsigned *n) { *n = 8; return 0; }",
    "aclrtGetSocName": 'const char *f(void) { return "Ascend910B1"; }',
    "aclrtGetMemInfo": "int f(int a, unsigned long *free, unsigned long *all)"
    " { *free = 62UL << 30; *all = 64UL << 30; return 0; }",
    "aclrtGetRunMode": "int f(int *mode) { *mode = 1; return 0; }",
    "aclGetRecentErrMsg": 'const char *f(void) { return ""; }',
    "HcclGetErrorString": 'const char *f(int code) { return ""; }',
    # 128 bytes for the whole, 64 for each part: MindSpore 2.10 reads the first part as a number
    "aclsysGetCANNVersion": "int f(int package, char (*version)[64])"
    ' { static const char *parts[] = {"8.3.0", "", "8", "3", "0", "0"};'
    " for (int i = 0; i < 6; i++) strcpy(version[i], parts[i]); return 0; }",
    "aclrtMallocHost": "int f(void **p, unsigned long n) { *p = malloc(n); return 0; }",
    "aclrtMalloc": "int f(void **p, unsigned long n)"
    " { static unsigned long a = 0x700000000000UL; *p = (void *)a; a += (n + 511) & ~511UL; return 0; }",
}
_HANDLES = [
    "aclCreateTensor",
    "aclCreateBoolArray",
    "aclCreateDataBuffer",
    "aclCreateFloatArray",
    "aclCreateIntArray",
    "aclCreateScalar",
    "aclCreateTensorDesc",
    "aclCreateTensorList",
    "aclmdlCreateDataset",
    "aclmdlCreateDesc",
    "aclopCreateAttr",
    "aclprofCreateConfig",
]
_OUT_HANDLES = [
    "aclrtCreateStream",
    "aclrtCreateStreamWithConfig",
    "aclrtCreateContext",
    "aclrtCreateEventWithFlag",
    "aclrtCreateEventExWithFlag",
    "aclrtGetCurrentContext",
]
# C++ functions that return an object by value: an empty std::string, or three zero words.
_STRINGS = ("ge::Operator::GetName", "ge::Operator::GetOpType", "ge::Graph::GetName")
_ZEROS = [
    "ge::OperatorFactory::CreateOperator",
    "ge::Operator::GetOutputDesc",
    "ge::Operator::GetInputDesc",
    "ge::Tensor::GetTensorDesc",
    "ge::TensorDesc::GetShape",
    "ge::TensorDesc::GetOriginShape",
    "ge::Shape::GetDims",
    "ge::Graph::GetDirectNode",
    "ge::GNode::GetInControlNodes",
    "ge::GNode::GetOutControlNodes",
    "ge::GNode::GetInDataNodesAndPortIndexs",
    "ge::GNode::GetOutDataNodesAndPortIndexs",
    "ge::Session::GetCompiledGraphSummary",
]
# Names that are looked up while running, and words that only look like them.
_LOOKED_UP = re.compile(rb"(?<![ -~])((?:acl[a-z]*|rt|Hccl|Hcom|Ms|hal)[A-Z][A-Za-z0-9_]+|aclnn[A-Za-z0-9_]+)(?![ -~])")
_WORDS = {"MsClassType", "MseLoss", "MseLossGrad", "aclDataType"}
_NOT_OF_CANN = ("Py", "_Py", "_ITM", "__g", "__tls_get", "__stack_chk", "_ZTH")
# Loaded before everything else. MindSpore asks how many processors there are: with few it builds graphs without
# inlining, as no server does. And two of its threads ask for reports of the device all the time. A device lets them
# wait, MindSpore's dry run answers at once (`SimuFuncIaclrtProcessReport`): they would take two processors.
_PRELOADED = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int get_nprocs(void) { return %(number)d; }
int get_nprocs_conf(void) { return %(number)d; }
long sysconf(int name) {
  static long (*real)(int);
  if (!real) real = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
  return name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF ? %(number)d : real(name);
}
int _ZN9mindspore6device6ascend27SimuFuncIaclrtProcessReportIiEET_i(int timeout_ms) { usleep(10000); return 0; }
"""
PROCESSORS = 16


def mindspore_libraries() -> Path:
    """Folder of the libraries of the installed MindSpore.

    Raises:
        LaunchError: there is no MindSpore, or its Ascend backend is not in it.
    """
    spec = importlib.util.find_spec("mindspore")
    if spec is None or spec.origin is None:
        raise LaunchError("MindSpore is not installed\n    fix:     pip install 'mindswap[cpu]'")
    folder = Path(spec.origin).parent / "lib"
    if not list((folder / "plugin").glob("libmindspore_ascend.so*")):
        raise LaunchError(
            f"the MindSpore in {folder.parent} has no Ascend backend (lib/plugin/libmindspore_ascend.so)\n"
            "    allowed: the wheel of PyPI for Linux, which has it\n    fix:     pip install mindspore==2.9.0"
        )
    return folder


def has_cann() -> bool:
    """The real libraries can be loaded: then no stand-ins are needed."""
    try:
        ctypes.CDLL("libascendcl.so")
    except OSError:
        return False
    return True


def stand_ins() -> Path:
    """Folder of the stand-ins for the installed MindSpore, made if it is not there (half a minute, once).

    Raises:
        LaunchError: no MindSpore, no C compiler, or the compiler refuses.
    """
    libraries = mindspore_libraries()
    wheel = sorted((path.name, path.stat().st_size) for path in (libraries / "plugin").glob("libmindspore_*"))
    key = hashlib.sha256(repr((VERSION, PROCESSORS, platform.machine(), str(libraries), wheel)).encode()).hexdigest()
    folder = cache_folder() / "stand_ins" / key[:16]
    return made_once(folder, lambda made: _make(made / HOME, libraries, find_compiler())) / HOME


def find_compiler() -> list[str]:
    """The command of a C compiler: `cc` of the machine, or ziglang of PyPI.

    Raises:
        LaunchError: there is neither.
    """
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    raise LaunchError(
        "a dry run makes stand-ins for CANN, and finds no C compiler\n    allowed: cc, gcc, clang, or ziglang of PyPI\n"
        "    fix:     pip install ziglang, which 'mindswap[dryrun]' brings"
    )


def environment(folder: Path, libraries: Path) -> dict[str, str]:
    """Variables with which MindSpore finds the stand-ins."""
    paths = [folder / "lib", libraries, libraries / "plugin" / "ascend"]
    return {"LD_LIBRARY_PATH": os.pathsep.join(map(str, paths)), "LD_PRELOAD": str(folder / "lib" / "preloaded.so")}


def _make(folder: Path, libraries: Path, compiler: list[str]) -> None:
    """Write the C files and compile them."""
    functions, missing, looked_up = find_symbols(libraries)
    for sub in ("lib", "lib64", "python/hccl"):
        (folder / sub).mkdir(parents=True)
    source = folder / "cann.c"
    source.write_text(c_source(functions, looked_up), encoding="utf-8")
    lib = folder / "lib"
    all_in = lib / "libascendcl.so"
    _compile(compiler, all_in, source, "-Wl,-soname,libascendcl.so")
    preloaded = folder / "preloaded.c"
    preloaded.write_text(_PRELOADED % {"number": PROCESSORS}, encoding="utf-8")
    _compile(compiler, lib / "preloaded.so", preloaded, "-ldl")
    empty = folder / "empty.c"
    empty.write_text("", encoding="utf-8")
    for name in sorted({*missing} - {all_in.name}):
        _compile(compiler, lib / name, empty, f"-Wl,-soname,{name}", "-Wl,--no-as-needed", f"-L{lib}", "-lascendcl")
    for name in (*_OPENED, *(path.name for path in lib.iterdir())):
        link = folder / "lib64" / name
        if not link.exists():
            link.symlink_to(f"../lib/{name if (lib / name).exists() else all_in.name}")
    (folder / "python/hccl/__init__.py").write_text("", encoding="utf-8")
    (folder / "python/hccl/sys_version.py").write_text("__sys_version__ = '8.3.0'\n", encoding="utf-8")


def _compile(compiler: list[str], output: Path, source: Path, *options: str) -> None:
    words = [*compiler, "-w", "-shared", "-fPIC", "-o", str(output), str(source), *options]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise LaunchError(f"the C compiler refuses the stand-ins ({compiler[0]}): {done.stderr.strip()[:500]}")


def find_symbols(libraries: Path) -> tuple[list[str], set[str], set[str]]:
    """Functions of CANN that the wheel is linked against, libraries that it misses, names that it looks up."""
    paths = [
        path for path in libraries.rglob("*.so*") if path.is_file() and "gpu" not in str(path.relative_to(libraries))
    ]
    shipped = {path.name for path in paths}
    defined: set[str] = set()
    undefined: set[str] = set()
    needed: set[str] = set()
    for library in map(read_library, paths):
        defined |= library.defined
        undefined |= library.undefined
        needed |= {*library.needed}
    missing = set()
    for name in sorted(needed - shipped):
        system = _system_library(name)
        if system is None:
            missing.add(name)
        else:
            defined |= system.defined
    wanted = {name for name in undefined - defined if not name.startswith(_NOT_OF_CANN) and "mindspore" not in name}
    ascend = [*libraries.glob("plugin/libmindspore_ascend.so*"), *libraries.glob("plugin/libmindspore_ops_ascend.so*")]
    ascend += libraries.glob("plugin/ascend/lib*.so")
    looked_up = {text for path in ascend for text in find_texts(path, _LOOKED_UP)} - _WORDS
    names = {name for name in missing if name.startswith("lib") and "mindspore" not in name}
    return sorted(wanted), names, looked_up


def _system_library(name: str) -> Library | None:
    """A library of the system, with what it needs itself; None if the loader does not find it."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return None
    for line in Path("/proc/self/maps").read_text("utf-8").splitlines():
        path = Path(line.partition("/")[2] and "/" + line.partition("/")[2])
        if path.name == name or path.name.startswith(f"{name}."):
            return read_library(path)
    return Library(frozenset(), frozenset(), ())


def c_source(functions: list[str], looked_up: set[str]) -> str:
    """One C file that defines every function, C++ ones under their mangled names."""
    lines = [
        "#include <stdlib.h>",
        "#include <string.h>",
        "struct three { void *a[3]; };",
        "struct text { void *p; unsigned long n; char b[16]; };",
    ]
    texts = dict(_ANSWERS)
    texts |= {name: "void *f(void) { return malloc(64); }" for name in _HANDLES}
    texts |= {name: "int f(void **p) { *p = malloc(64); return 0; }" for name in _OUT_HANDLES}
    lines += [re.sub(r"\bf\(", f"{name}(", text, count=1) for name, text in texts.items()]
    lines += [_definition(number, name) for number, name in enumerate(functions) if name not in texts]
    known = {*texts, *functions}
    for name in sorted(looked_up):
        is_operator = name.startswith("aclnn") and not name.endswith("GetWorkspaceSize")
        for each in (name, f"{name}GetWorkspaceSize") if is_operator else (name,):
            if each not in known:
                known.add(each)
                lines.append(f"int {each}() {{ return 0; }}")
    return "\n".join(lines) + "\n"


def _definition(number: int, mangled: str) -> str:
    """One function, under its mangled name."""
    path = cpp_path(mangled)
    name = "::".join(path)
    kind, arguments, body = "long", "void", "return 0;"
    if name in _STRINGS and "AscendString" not in mangled:
        kind, body = "struct text", "struct text s = {0}; return s;"
    elif name in _ZEROS:
        kind, body = "struct three", "struct three t = {0}; return t;"
    elif path[:1] == ["ge"] and len(path) > 2 and path[-1] == path[-2] and not path[-1].endswith("Register"):
        first = 1 if path[-1] == "Operator" else 0  # its table of virtual functions is set by the derived class
        kind, arguments, body = "void", "void **self", f"self[{first}] = 0; self[{first + 1}] = 0;"
    elif path[-1:] == ["Instance"]:  # of a class that begins with an empty std::map, as ge::StatusFactory does
        kind, body = "void *", "static void *o[64]; if (!o[3]) o[3] = o[4] = &o[1]; return o;"
    elif path[:1] == ["ge"] and path[-1] in ("SetAttr", "SetInput", "AddControlInput"):
        kind, arguments, body = "void *", "void *self", "return self;"
    head = f"{kind} f_{number}({arguments})"
    return f'{head} __asm__("{mangled}"); {head} {{ {body} }}'
