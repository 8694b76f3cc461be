"""Install `mindswap_switch.pth` with the package; everything else is described in pyproject.toml."""

import base64
import hashlib
import zipfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

HOOK = Path("mindswap_switch.pth")


class BuildWithHook(build_py):
    """Put the hook beside the package, which is where Python looks for `.pth` files."""

    def run(self):
        """Build the package, then copy the hook."""
        super().run()
        if not self.editable_mode:
            self.copy_file(str(HOOK), str(Path(self.build_lib, HOOK)), preserve_mode=False)

    def get_outputs(self, include_bytecode=True):
        """Return the files of the package, and the hook unless `run` leaves it out."""
        hook = [] if self.editable_mode else [str(Path(self.build_lib, HOOK))]
        return [*super().get_outputs(include_bytecode), *hook]


class EditableWithHook(editable_wheel):
    """`pip install -e`: its wheel has links only, so the hook is added to the finished file."""

    def run(self):
        """Build the wheel, then add the hook."""
        super().run()
        (wheel,) = Path(self.dist_dir).glob("mindswap-*.whl")
        add_to_wheel(wheel, HOOK)


def add_to_wheel(wheel: Path, added: Path) -> None:
    """Add a file to the top of a wheel, and to its list of files with hash and size."""
    data = added.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(wheel) as archive:
        files = {info: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(added.name, data)
        for info, content in files.items():
            is_record = info.filename.endswith(".dist-info/RECORD")
            line = f"{added.name},sha256={digest},{len(data)}\n".encode() if is_record else b""
            archive.writestr(info, line + content)


setup(cmdclass={"build_py": BuildWithHook, "editable_wheel": EditableWithHook})
