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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from mindswap.errors import LaunchError, install_command
from mindswap.files import DATA, package_data
from mindswap.graph.capture_cache import open_cache
from mindswap.system.children import module_command, started
from mindswap.system.disk_cache import cached_folder

# Part of the cache key. Raise it when data/dryrun/, `_OPENED`, `_LOOKED_UP` or `_definition` change.
EDITION = 6
# MindSpore's GetAscendPath takes the path of a library up to this word as the home of CANN.
HOME = "cann"
# Libraries that MindSpore opens at run time, in addition to those that it is linked against.
_OPENED = ("libacl_op_compiler.so", "libacl_tdt_channel.so")
_DATA = DATA / "dryrun"
# Functions that cann.c defines.
_DEFINED = re.compile(r"^(?:HANDLE|OUT_HANDLE)\((\w+)\)|^[a-z][\w *]*?(\w+)\(.*\{", re.MULTILINE)
# Names that are looked up while running, and words that only look like them.
_LOOKED_UP = re.compile(rb"(?<![ -~])((?:acl[a-z]*|rt|Hccl|Hcom|Ms|hal)[A-Z][A-Za-z0-9_]+|aclnn[A-Za-z0-9_]+)(?![ -~])")
_WORDS = {"MsClassType", "MseLoss", "MseLossGrad", "aclDataType"}
_NOT_OF_CANN = ("Py", "_Py", "_ITM", "__g", "__tls_get", "__stack_chk", "_ZTH")
PROCESSORS = 16


def mindspore_libraries() -> Path:
    """Folder of the libraries of the installed MindSpore.

    Raises:
        LaunchError: there is no MindSpore, or its Ascend backend is not in it.
    """
    spec = importlib.util.find_spec("mindspore")
    if spec is None or spec.origin is None:
        raise LaunchError(f"MindSpore is not installed\n    fix:     {install_command('cpu')}")
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


def prepare_stand_ins(report_status: Callable[[str], None]) -> None:
    """Make the stand-ins unless CANN is there.

    Args:
        report_status: called with a line before they are made, which may take half a minute.

    Raises:
        LaunchError: see `stub_libraries`.
    """
    if not has_cann():
        report_status("preparing stand-ins for CANN's libraries")
        stub_libraries()


def stub_libraries() -> Path:
    """Folder of the stand-ins for the installed MindSpore, made if it is not there (half a minute, once).

    Raises:
        LaunchError: no MindSpore, no C compiler, or the compiler refuses.
    """
    libraries = mindspore_libraries()
    wheel = sorted((path.name, path.stat().st_size) for path in (libraries / "plugin").glob("libmindspore_*"))
    key = hashlib.sha256(repr((EDITION, PROCESSORS, platform.machine(), str(libraries), wheel)).encode()).hexdigest()
    kept = cached_folder(
        open_cache(), "stand_ins", key[:16], lambda made: _make(made / HOME, libraries, find_compiler())
    )
    return kept / HOME


def find_compiler() -> list[str]:
    """The command of a C compiler: `cc` of the machine, or ziglang of PyPI.

    Raises:
        LaunchError: there is neither.
    """
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    if importlib.util.find_spec("ziglang") is not None:
        return module_command("ziglang", "cc")
    raise LaunchError(
        "a dry run makes stand-ins for CANN, and finds no C compiler\n    allowed: cc, gcc, clang, or ziglang of PyPI\n"
        "    fix:     pip install ziglang"
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
    compile_preloaded(compiler, lib / "preloaded.so")
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


def compile_preloaded(compiler: list[str], output: Path) -> None:
    """The library that is loaded before everything else."""
    _compile(compiler, output, _DATA / "preloaded.c", f"-DPROCESSORS={PROCESSORS}", "-ldl")


def _compile(compiler: list[str], output: Path, source: Path, *options: str) -> None:
    words = [*compiler, "-w", "-shared", "-fPIC", "-o", str(output), str(source), *options]
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with started(words, **streams, text=True, errors="replace") as process:
        said, _ = process.communicate()
    if process.returncode:
        raise LaunchError(f"the C compiler refuses the stand-ins ({compiler[0]}): {said.strip()[:500]}")


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


def _system_library(name: str) -> "Library | None":
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
    text = (_DATA / "cann.c").read_text("utf-8")
    answered = {match[1] or match[2] for match in _DEFINED.finditer(text)}
    returned: dict[str, list[str]] = package_data("dryrun/ge.json")
    lines = [_definition(number, name, returned) for number, name in enumerate(functions) if name not in answered]
    known = {*answered, *functions}
    for name in sorted(looked_up):
        is_operator = name.startswith("aclnn") and not name.endswith("GetWorkspaceSize")
        for each in (name, f"{name}GetWorkspaceSize") if is_operator else (name,):
            if each not in known:
                known.add(each)
                lines.append(f"int {each}() {{ return 0; }}")
    return text + "\n".join(lines) + "\n"


def _definition(number: int, mangled: str, returned: dict[str, list[str]]) -> str:
    """One function, under its mangled name; `returned`: those that give objects by value."""
    path = cpp_path(mangled)
    name = "::".join(path)
    kind, arguments, body = "long", "void", "return 0;"
    if name in returned["strings"] and "AscendString" not in mangled:
        kind, body = "struct text", "struct text s = {0}; return s;"
    elif name in returned["zeros"]:
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


# What a shared library asks for and offers, read from its ELF file.


@dataclass(frozen=True)
class Library:
    """The dynamic symbols of a shared library."""

    defined: frozenset[str]
    undefined: frozenset[str]
    needed: tuple[str, ...]  # names of the libraries that it is linked against


def read_library(path: Path) -> Library:
    """Read the dynamic symbols of a shared library.

    Raises:
        ValueError: it is no ELF file.
    """
    try:
        with path.open("rb") as stream:
            file: Any = ELFFile(stream)
            dynamic, symbols = file.get_section_by_name(".dynamic"), file.get_section_by_name(".dynsym")
            needed = tuple(tag.needed for tag in dynamic.iter_tags("DT_NEEDED")) if dynamic else ()
            names: dict[bool, set[str]] = {True: set(), False: set()}
            for symbol in symbols.iter_symbols() if symbols else ():
                names[symbol["st_shndx"] != "SHN_UNDEF"].add(symbol.name)
    except ELFError as error:
        raise ValueError(f"{path}: not an ELF file: {error}") from None
    return Library(frozenset(names[True]), frozenset(names[False] - {""}), needed)


def find_texts(path: Path, pattern: re.Pattern[bytes]) -> Iterator[str]:
    """Texts between zero bytes that match as a whole: names that are looked up while running."""
    for match in pattern.finditer(path.read_bytes()):
        yield match[1].decode()


def cpp_path(mangled: str) -> list[str]:
    """Names of a C++ symbol from the outside in (ge, Operator, GetName), a constructor twice; [] for a C symbol."""
    match = re.match(r"_ZNK?|_ZTVN|_ZTIN", mangled)
    position = match.end() if match else len(mangled)
    names: list[str] = []
    while number := re.match(r"\d+", mangled[position:]):
        start = position + number.end()
        position = start + int(number[0])
        names.append(mangled[start:position])
    if names and re.match(r"C[12]", mangled[position:]):
        names.append(names[-1])
    return names
