"""Redraw the pictures in docs/images: scripts/redraw_images.py [RESULTS_FOLDER...]

Each docs/images/labNN-NAME.png is NAME.png of a run of lab NN: of the folder given for it, or else of the newest run
below results/. Its report is made again with today's code first, so a picture's style can change without a new run.
Run the labs on a machine that does nothing else; a busy one shows as gaps between the tokens.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGE = re.compile(r"lab(?P<number>\d\d)-(?P<name>.+\.png)")


def runs(lab: Path, given: list[Path], name: str) -> list[Path]:
    """The folders with the picture, the newest last; only those given, where one of them is of this lab."""
    own = [folder for folder in given if folder.parent.name == lab.name]
    every = own or sorted((ROOT / "results" / lab.name).glob("*"))
    return [folder for folder in every if (folder / name).is_file()]


def main(given: list[Path]) -> int:
    missing = 0
    for image in sorted((ROOT / "docs" / "images").glob("lab*.png")):
        match = IMAGE.fullmatch(image.name)
        if not match:
            continue
        (lab,) = (ROOT / "labs").glob(f"{match['number']}-*")
        folders = runs(lab, given, match["name"])
        if not folders:
            print(f"{image.name}: no run of lab {match['number']} has {match['name']} (labctl run {match['number']})")
            missing += 1
            continue
        subprocess.run([sys.executable, lab / "report.py", folders[-1]], check=True, stdout=subprocess.DEVNULL)
        shutil.copyfile(folders[-1] / match["name"], image)
        print(f"{image.name}: from {folders[-1]}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main([Path(argument).resolve() for argument in sys.argv[1:]]))
