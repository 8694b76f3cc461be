"""Python programs for tests, each in a process of its own that has MindSpore and MindFormers imported already.

To import both takes more than four seconds of CPU, and the tests run more than a hundred such programs. Here a process
imports them once and is forked for each. A test in which the order of imports matters starts a Python of its own, and
so does a training whose log is read to the line: `mindswap run` sets what MindSpore reads when it is imported.

python -m tests.forked is that process: a program from each line of stdin, its exit code to stdout.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from functools import cache
from pathlib import Path

__all__ = ["run"]

ROOT = Path(__file__).parents[1]
# Those that MindSpore and MindFormers read when they are imported.
READ_AT_IMPORT = ("MS_", "RANK_", "GLOG_", "LOG_")


def run(words, *, cwd=None, env=None, input="", check=False, timeout=1800) -> subprocess.CompletedProcess:
    """As `subprocess.run([sys.executable, *words], capture_output=True, text=True, ...)`.

    Args:
        words: of the command line: a script, or `-m` and a module, or `-c` and code, then its arguments.
        cwd, env, input, check, timeout: as there.
    """
    words = list(map(str, words))
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        streams[0].write_text(input)
        program = {
            "words": words, "cwd": str(cwd or Path.cwd()), "env": dict(env or os.environ),
            "streams": list(map(str, streams)), "timeout_s": timeout,
        }  # fmt: skip
        server = _server()
        server.stdin.write(json.dumps(program) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        out, err = (path.read_text(errors="replace") for path in streams[1:])
    if code == -signal.SIGALRM:
        raise subprocess.TimeoutExpired(words, timeout, out, err)
    result = subprocess.CompletedProcess(words, code, out, err)
    if check:
        result.check_returncode()
    return result


@cache
def _server() -> subprocess.Popen:
    """The process that is forked; it ends with the one that asks it, when its stdin is closed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(READ_AT_IMPORT)}
    command = [sys.executable, "-m", "tests.forked"]
    server = subprocess.Popen(command, cwd=ROOT, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.communicate)  # closes its stdin and waits
    return server


def _serve() -> None:
    from mindswap.adapters.quiet import quiet

    with quiet():
        import mindformers  # noqa: F401 imports MindSpore

        import mindswap.features.inspect
        import mindswap.features.plan
        import mindswap.features.verify  # noqa: F401 loaded for the forks
    gc.freeze()
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            _become(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(words: list[str], cwd: str, env: dict[str, str], streams: list[str], timeout_s: int) -> None:
    """Go on as this program, and end as Python ends."""
    code = 1
    try:
        signal.alarm(timeout_s)
        for descriptor, path in enumerate(streams):
            opened = os.open(path, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(opened, descriptor)
            os.close(opened)
        sys.stdin = os.fdopen(0, closefd=False)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd)
        code = _run(words)
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 the child must not go on in the loop of its parent
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _run(words: list[str]) -> int:
    """Exit code."""
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = words
            sys.path.insert(0, str(Path(words[0]).resolve().parent))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001 as the interpreter does
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    _serve()
