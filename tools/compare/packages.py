"""Installs the npm packages of function.mjs and bench.mjs, for compare.py and `make bench`.

`make bench` runs this file. It leaves out the functions whose packages are missing.
"""

import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import cloud

HERE = Path(__file__).resolve().parent
NODE = cloud.STATE / "compare"


def install() -> None:
    """Installs the packages at the versions of package-lock.json, beside copies of the functions."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise cloud.Unavailable("Node.js 20 or later is needed, with npm")
    NODE.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", ".npmrc", "function.mjs", "bench.mjs"):
        shutil.copy(HERE / name, NODE / name)
    npm = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    if subprocess.run(npm, cwd=NODE, stdin=subprocess.DEVNULL).returncode != 0:
        raise cloud.Unavailable("npm could not install the packages of tools/compare")


if __name__ == "__main__":
    try:
        install()
    except cloud.Unavailable as problem:
        print(f"Powertools TypeScript is left out: {problem}")
