"""Environment variables of this package's processes, and of MindSpore in this process.

A shell, a container or a job scheduler sets variables for a training: log levels, dumps, caches, ranks. They change
behaviour and output of MindSpore, CANN and Python, which this package parses. Therefore variables of these libraries
are removed unless they are listed here. A training (`mindswap run`) keeps the user's variables; only a training whose
log is parsed (`--memory auto`) runs without those in `_HIDES_LOG`.
"""

import contextlib
import os
import pwd
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from mindswap.errors import DataError, system_errors_as

# Variables of MindSpore, MindFormers, CANN, their launchers and Python, by the start of the name.
_OF_LIBRARIES = (
    *("MS_", "MINDSPORE_", "GLOG_", "VLOG_", "logger_", "MINDDATA_", "DATASET_", "PROFILING_", "PERF_DUMP_"),
    *("ENABLE_", "RANK_", "DEVICE_", "LOCAL_RANK", "MSRUN_", "OMPI_", "PMIX_", "MINDX_", "BATCH_JOB_ID", "AITURBO"),
    *("KERNEL_META_DIR", "RUN_MODE", "RUNTIME_MODE", "CONTEXT_MODELCOMPILING", "GC_COLLECT_IN_CELL", "TE_PARALLEL_"),
    *("STDOUT_DEVICES", "LOG_MF_PATH", "LOCAL_DEFAULT_PATH", "SHARED_PATHS", "CPU_AFFINITY"),
    *("CUSTOM_MATMUL_SHUFFLE", "REMOTE_SAVE_URL", "EXPERIMENTAL_KERNEL_", "NPU_ASD_ENABLE"),
    *("ASCEND", "CANN", "PYTHON", "LC_", "LANGUAGE"),
)
# Variables that change the compiled graph, also in a training; part of the key of cached results.
COMPILE_VARIABLES = frozenset({
    "ENABLE_LAZY_INLINE", "ENABLE_LAZY_INLINE_NO_PIPELINE", "ENABLE_LESS_MEM_VPP", "ENABLE_RECOMPUTE_BEFORE_INLINE",
    "MS_CUSTOM_AOT_WHITE_LIST", "MS_DEV_GRAPH_KERNEL_FLAGS", "MS_DEV_RUNTIME_CONF", "MS_DEV_SIDE_EFFECT_LOAD_ELIM",
    "MS_DEV_TENSOR_INDEX_BOOST", "MS_JIT_IGNORE_MODULES", "MS_JIT_MODULES",
})  # fmt: skip
# Folders in which CANN writes kernels, data and logs; set by sites whose home folders are small or read-only.
_CANN_OUTPUT = ("ASCEND_CACHE_PATH", "ASCEND_WORK_PATH", "ASCEND_PROCESS_LOG_PATH")
# Folders in which CANN is installed, and in which it writes.
CANN_VARIABLES = frozenset({
    "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH", "ASCEND_AICPU_PATH", "ASCEND_CUSTOM_OPP_PATH",
    "ASCEND_DRIVER_HOME", "ASCEND_DRIVER_PATH", "ASCEND_TENSOR_COMPILER_INCLUDE", *_CANN_OUTPUT,
})  # fmt: skip
# Search paths of Python.
_PYTHON = frozenset({
    "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX",
    "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED",
})  # fmt: skip
# With the pool of device memory, which this package reads, and the code that `auto_register` names.
_PASSING = COMPILE_VARIABLES | CANN_VARIABLES | _PYTHON | {"MS_ALLOC_CONF", "REGISTER_PATH"}
# Messages in English, text in UTF-8.
_SET = {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}
# Folders: relative ones are of the folder in which the command was started.
_FOLDERS = (
    *("MINDSWAP_CACHE", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "PYTHONPYCACHEPREFIX", "TMPDIR"),
    *("REGISTER_PATH", "MS_CUSTOM_AOT_WHITE_LIST", *_CANN_OUTPUT),
)
# Variables that move the log of a training, or hide lines that are parsed: severity, steps, peak memory.
_HIDES_LOG = ("GLOG_", "MS_SUBMODULE_LOG_v", "STDOUT_DEVICES", "logger_")

_lock = threading.Lock()
# Variables that MindSpore and MindFormers set once per process, when they are imported or first used.
_set_by_libraries: dict[str, str] = {}
_users: dict[str, str] | None = None  # the user's variables, while they are replaced


def user_environment() -> dict[str, str]:
    """Return the user's variables, also within `replaced_environment`."""
    with _lock:
        return dict(os.environ if _users is None else _users)


def home_folder(environ: Mapping[str, str]) -> Path:
    """Return the user's home folder, or `private_folder` without one (a container with an arbitrary user id).

    Raises:
        DataError: if there is none, and none can be created.
    """
    if environ.get("HOME"):
        return Path(environ["HOME"])
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return private_folder()


@contextlib.contextmanager
def home_is_set() -> Iterator[None]:
    """Set HOME within the context if possible, because libraries fail without it, or write to a folder "~"."""
    before = os.environ.get("HOME")
    if not before:
        with contextlib.suppress(DataError):  # the code that needs the folder reports the error
            os.environ["HOME"] = str(home_folder(os.environ).absolute())
    try:
        yield
    finally:
        if not before:
            os.environ.pop("HOME", None)
            os.environ.update({} if before is None else {"HOME": before})


def private_folder() -> Path:
    """Create and return a permanent folder in the temporary folder that only this user can read and write.

    Raises:
        DataError: if it cannot be created, or belongs to another user.
    """
    folder = Path(tempfile.gettempdir(), f"mindswap-user-{os.geteuid()}")
    with system_errors_as(DataError, f"{folder}: cannot be made"):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise DataError(f"{folder}: is no folder of this user alone\n    fix:     export HOME=a folder of yours")
    return folder


def package_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables for a process of this package.

    Args:
        environ: the user's variables; default is `user_environment`.
    """
    variables = user_environment() if environ is None else environ
    passing = {name: text for name, text in variables.items() if name in _PASSING or not name.startswith(_OF_LIBRARIES)}
    return _with_absolute_folders(passing) | _SET | {"HOME": str(home_folder(passing).absolute())}


def readable_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the user's variables for a training whose log is parsed, without those that hide warnings.

    Args:
        environ: see `package_environment`.
    """
    variables = user_environment() if environ is None else environ
    kept = {name: text for name, text in variables.items() if not name.startswith(_HIDES_LOG)}
    level = variables.get("GLOG_v", "")
    return kept | ({"GLOG_v": level} if level in ("0", "1") else {})


@contextlib.contextmanager
def replaced_environment() -> Iterator[None]:
    """Set the variables of `package_environment` in this process within the context.

    On exit changed variables are restored; variables that libraries set for later in the meantime are kept.
    """
    global _users
    with _lock:
        before, outer = dict(os.environ), _users
        _users = before if outer is None else outer
        ours = package_environment(before) | _set_by_libraries
        _update(before, ours)
    try:
        yield
    finally:
        with _lock:
            _users = outer
            now = dict(os.environ)
            _set_by_libraries.update(
                {name: text for name, text in now.items() if name.startswith(_OF_LIBRARIES) and ours.get(name) != text}
            )
            changed = {name for name in before.keys() | ours.keys() if before.get(name) != ours.get(name)}
            untouched = {name for name in changed if now.get(name) == ours.get(name)}
            _update(now, {name: text for name, text in now.items() if name not in untouched}
                    | {name: before[name] for name in untouched & before.keys()})  # fmt: skip


def _update(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Change the variables of this process one by one, because other threads may read them."""
    for name in before.keys() - after.keys():
        os.environ.pop(name, None)
    os.environ.update({name: text for name, text in after.items() if before.get(name) != text})


def _with_absolute_folders(environ: dict[str, str]) -> dict[str, str]:
    return environ | {name: str(Path(environ[name]).absolute()) for name in _FOLDERS if environ.get(name)}
