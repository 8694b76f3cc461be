"""Builds wheel and sdist, installs the wheel in a clean environment, and trains with it: `make wheel-test`.

The environment knows nothing of this checkout: it is made of the wheel and of what its extra `cpu` brings along. The
sdist is unpacked and built again, and must give the same files. `--build-only --keep dist` is `make dist`: what would
be published, and the commands that need no MindSpore from an environment of the wheel alone.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIG = "llama2_small.yaml"
LOSS = re.compile(r"loss:\[(\d+\.\d+)/")


def main() -> int:
    """Do all of it; exit code 0 if the losses fall and are as with swap off."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-only", action="store_true", help="without MindSpore: train nothing")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="put wheel and sdist there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mindswap-wheel-") as name:
        place = Path(name)
        wheel, sdist = build(place)
        say(f"{wheel.name}, {wheel.stat().st_size >> 10} KiB; {sdist.name}, {sdist.stat().st_size >> 10} KiB")
        if args.keep:
            args.keep.mkdir(exist_ok=True)
            for built in (wheel, sdist):
                shutil.copy(built, args.keep)
        if args.build_only:
            return read(place, install(place, wheel, ""))
        say("installing the wheel with mindspore and mindformers ...")
        mindswap = install(place, wheel, "[cpu]")
        return train(place, mindswap)


def build(place: Path) -> tuple[Path, Path]:
    """The wheel of a clean copy of this checkout, its sdist, and the wheel of that: both wheels hold the same files."""
    copy = place / "mindswap"
    copy.mkdir()
    files = run(["git", "ls-files", "-z"], ROOT).split("\0")
    for file in filter(None, files):
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        (copy / file).write_bytes((ROOT / file).read_bytes())
    run([sys.executable, "-m", "venv", str(place / "build")], place)
    python = str(place / "build" / "bin" / "python")
    run([python, "-m", "pip", "install", "--quiet", "setuptools>=77", "wheel", "build", "twine"], place)
    run([python, "-m", "build", "--no-isolation", "--sdist", "--outdir", str(place / "dist")], copy)
    sdist = next((place / "dist").glob("*.tar.gz"))
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    wheels = []
    for source, target in ((copy, "dist"), (place / sdist.name.removesuffix(".tar.gz"), "again")):
        command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(place / target)]
        run([python, *command, str(source)], place)
        wheels.append(next((place / target).glob("*.whl")))
    names = [sorted(zipfile.ZipFile(wheel).namelist()) for wheel in wheels]
    if names[0] != names[1]:
        sys.exit(f"the sdist lacks files: {sorted(set(names[0]) ^ set(names[1]))[:10]}")
    tracked = {file for file in files if file.startswith(("mindswap/", "mindswap_switch."))}
    missing = tracked - set(names[0])
    if missing:
        sys.exit(f"the wheel lacks files: {sorted(missing)[:10]}")
    run([python, "-m", "twine", "check", "--strict", str(wheels[0]), str(sdist)], place)
    run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "-e", str(copy)], place)
    is_found = "import importlib.util as u; assert u.find_spec('mindswap').origin"  # a mere folder has none
    run([python, "-c", is_found], place)
    require_hook(python, place)  # of `pip install -e`
    return wheels[0], sdist


def require_hook(python: str, place: Path) -> None:
    """Stop if this Python does not run the hook of the package when MINDSWAP is set, or loads it without."""
    is_loaded = "import sys; print('mindswap_switch' in sys.modules)"
    printed = [run([python, "-c", is_loaded], place, MINDSWAP=value).strip() for value in ("1", "")]
    if printed != ["True", "False"]:
        sys.exit(f"mindswap_switch.pth is not installed as it should be: loaded {printed} with MINDSWAP=1 and without")


def install(place: Path, wheel: Path, extra: str) -> list[str]:
    """An environment of the wheel and of an extra; gives the command."""
    folder = place / "venv"
    run([sys.executable, "-m", "venv", str(folder)], place)
    run([str(folder / "bin" / "pip"), "install", "--quiet", "--no-compile", f"{wheel}{extra}"], place)
    run([str(folder / "bin" / "pip"), "check"], place)
    require_hook(str(folder / "bin" / "python"), place)
    return [str(folder / "bin" / "mindswap")]


def read(place: Path, mindswap: list[str]) -> int:
    """Try what needs no MindSpore, in a folder of its own; the version is that of the file's name."""
    run([*mindswap, "example", "."], place)
    version = run([*mindswap, "--version"], place).split()[-1]
    wheel = next((place / "dist").glob("*.whl")).name
    for command in ("check", "explain"):
        run([*mindswap, command, CONFIG], place)
    say(f"version {version}: check and explain work without a checkout")
    return int(f"-{version}-" not in wheel)


def train(place: Path, mindswap: list[str]) -> int:
    """The example of the package, with swap and without, in a folder of its own."""
    work = place / "work"
    run([*mindswap, "example", str(work)], place)
    run([*mindswap, "prepare-data", "text.txt", "--output", "text.mindrecord", "--seq-length", "64"], work)
    run([*mindswap, "check", CONFIG], work)
    losses = []
    for swap in ("True", "False"):
        say(f"training, swap {swap} ...")
        words = ["run", "--config", CONFIG, "--run_mode", "train", "--train_dataset_dir", "text.mindrecord"]
        losses.append(LOSS.findall(run([*mindswap, *words, "--swap_config.swap", swap], work)))
    say(f"{len(losses[0])} steps, loss {losses[0][0]} -> {losses[0][-1]}")
    is_good = losses[0] == losses[1] and float(losses[0][-1]) < float(losses[0][0])
    say("as with swap off" if is_good else f"NOT as with swap off: {losses}")
    return int(not is_good)


def run(command: list[str], folder: Path, **variables: str) -> str:
    """Output of a command, which knows nothing of the checkout; stops at one that fails."""
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environ |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, errors="replace")
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout + (done.stderr if "run" in command else "")


def say(text: str) -> None:
    """One line of progress."""
    print(f"[wheel] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
