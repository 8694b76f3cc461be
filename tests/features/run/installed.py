"""An environment in which mindswap is installed with its hook."""

import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import mindswap

ROOT = Path(mindswap.__file__).parents[1]
HOOK = ROOT / "mindswap_switch.pth"


class Environment:
    """A virtual environment with the packages of this one and the hook, as pip would install it."""

    def __init__(self, folder: Path, package: Path = ROOT):
        venv.create(folder / "env", with_pip=False)
        self.folder = folder
        self.python = folder / "env" / "bin" / "python"
        (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
        shared = sysconfig.get_paths()["purelib"]
        (packages / "1_checkout.pth").write_text(f"{package}\n")
        (packages / "2_shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
        shutil.copy(HOOK, packages)

    def run(self, *words: str, switch: str | None = "1", **variables: str) -> subprocess.CompletedProcess[str]:
        """Run this environment's Python; `switch` is the value of the variable, None without it."""
        environ = {name: text for name, text in os.environ.items() if name not in ("MINDSWAP", "PYTHONPATH")}
        environ |= variables | ({} if switch is None else {"MINDSWAP": switch})
        return subprocess.run(
            [self.python, *words], cwd=self.folder, env=environ, capture_output=True, text=True, timeout=900
        )
