#!/usr/bin/env bash
# Make .venv in this checkout with labctl and everything that the labs need, in the versions that requirements/ locks.
# Called by `make setup`; safe to repeat.
#   scripts/setup.sh [PYTHON]
# LABS_TORCH_INDEX   a package index for PyTorch; see docker/install-packages.sh
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-$(scripts/find_python.sh)}
started=$SECONDS
log=.venv/setup.log

# Settings of Python for other environments do not apply to this one; those of pip: docker/install-packages.sh.
unset PYTHONPATH PYTHONHOME

fail() { printf 'error: %s\ntry:   %s\n' "$1" "$2" >&2; exit 1; }
step() { printf '  ..  %s\n' "$1" >&2; }

for folder in "$PWD" "${LABS_CACHE:-$HOME/.cache/triton-labs}"; do
    strange=$(printf %s "$folder" | LC_ALL=C tr -d 'A-Za-z0-9_./+,@%=~-')
    [ -z "$strange" ] || fail "no server would come up from $folder: Triton's python backend takes no '$strange' in a path" "move it to a path of plain letters, digits and . _ - (LABS_CACHE names the cache's), then make setup"
done
case $(uname -sm) in
    "Linux x86_64" | "Linux aarch64") ;;
    *) fail "the labs' local runtime needs Linux on x86_64 or arm64, this is $(uname -sm)" "the Docker runtime: see README.md, requirements" ;;
esac
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null \
    || fail "no Python 3.11 or 3.12 found ($python)" "apt-get install python3.11 python3.11-venv libpython3.11 (Debian, Ubuntu), or LABS_PYTHON=/path/to/python make setup"
"$python" -c 'import ensurepip, venv' 2>/dev/null \
    || fail "$python cannot make virtual environments" "apt-get install python3-venv (Debian, Ubuntu)"
"$python" -c 'import platform, sys; v = platform.libc_ver(); sys.exit(not (v[0] == "glibc" and tuple(map(int, v[1].split(".")[:2])) >= (2, 35)))' \
    || fail "Triton's wheel needs glibc 2.35 or newer" "Debian 12, Ubuntu 22.04 or newer, or the Docker runtime"

step "environment .venv ($("$python" --version), $python)"
real() { "$1" -c 'import os, sys; print(os.path.realpath(sys.executable))' 2>/dev/null; }
[ "$(real .venv/bin/python)" = "$(real "$python")" ] || rm -rf .venv
[ -d .venv ] || "$python" -m venv .venv
: >"$log"
logged() { # logged REMEDY COMMAND...
    "${@:2}" >>"$log" 2>&1 || { tail -15 "$log" >&2; fail "pip install failed (whole log: $log)" "$1, then make setup again"; }
}
packages() { LABS_PIP=".venv/bin/python -m pip" LABS_COMPILE=--no-compile docker/install-packages.sh "$@"; }

step "PyTorch, the CPU build${LABS_TORCH_INDEX:+ of $LABS_TORCH_INDEX} (200 MB, the largest download)"
logged "check the network, or set LABS_TORCH_INDEX to a package index that has PyTorch's CPU build" packages requirements/torch.txt
step "the packages of requirements/labs.txt, Triton Inference Server among them"
logged "check the network and pip's settings" packages requirements/labs.txt
step "labctl"
logged "see the log" packages --project .

step "checking that the server's python backend will find its Python"
.venv/bin/python - <<'PY' || fail "Triton cannot run with this Python" "the remedy above"
import sys
from labkit.errors import LabError
from labctl.runtimes.local import LocalRuntime
from labctl.workspace import Workspace
try:
    LocalRuntime(Workspace.find()).check("cpu")
except LabError as error:
    sys.exit(f"{error}")
PY
touch .venv/.ready
printf '  ok  ready after %d s\n\nnext:  source .venv/bin/activate    # once in each terminal\n       labctl learn                # the exercises, on one screen\n       labctl --help               # all commands\n' $((SECONDS - started)) >&2
