"""The step of the wheel's build that takes the labs along; all else about the package stands in pyproject.toml.

A wheel holds packages, but labctl works on a checkout: labs, models, Docker files, requirements, its own sources to
install. So the build copies every file that MANIFEST.in names to ``labctl/checkout`` in the wheel, and `labctl new`
copies them out of there. Package data in pyproject.toml would not do: setuptools takes it from inside a package only.
An editable installation has the checkout itself, and the images are built without this file: neither has the copy.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

MADE = ("PKG-INFO", "setup.cfg")  # by the build of an sdist


class BuildWithCheckout(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        self.run_command("egg_info")
        target = Path(self.build_lib, "labctl", "checkout")
        shutil.rmtree(target, ignore_errors=True)  # what an earlier build left
        for name in self.get_finalized_command("egg_info").filelist.files:
            path = Path(name)
            if name not in MADE and not any(part.endswith(".egg-info") for part in path.parts):
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target / path)  # with its mode: scripts stay executable


setup(cmdclass={"build_py": BuildWithCheckout})
