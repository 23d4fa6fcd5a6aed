#!/usr/bin/env bash
# Make .venv in this checkout with labctl and everything that the labs need. Called by `make setup`; safe to repeat.
#   scripts/setup.sh [PYTHON]
# LABS_TORCH_INDEX   a package index for CPU builds of PyTorch. Default: PyTorch's own CPU index where it answers,
#                    else whatever pip is set up to use.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-$(scripts/find_python.sh)}
started=$SECONDS
log=.venv/setup.log
torch_cpu_index=https://download.pytorch.org/whl/cpu

fail() { printf 'error: %s\ntry:   %s\n' "$1" "$2" >&2; exit 1; }
step() { printf '  ..  %s\n' "$1" >&2; }

[ "$(uname -sm)" = "Linux x86_64" ] || fail "the labs' local runtime needs Linux x86_64, this is $(uname -sm)" "the Docker runtime: see README.md, requirements"
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null \
    || fail "no Python 3.11 or 3.12 found ($python)" "apt-get install python3.11 python3.11-venv libpython3.11 (Debian, Ubuntu), or LABS_PYTHON=/path/to/python make setup"
"$python" -c 'import ensurepip, venv' 2>/dev/null \
    || fail "$python cannot make virtual environments" "apt-get install python3-venv (Debian, Ubuntu)"
"$python" -c 'import platform, sys; v = platform.libc_ver(); sys.exit(not (v[0] == "glibc" and tuple(map(int, v[1].split(".")[:2])) >= (2, 35)))' \
    || fail "Triton's wheel needs glibc 2.35 or newer" "Debian 12, Ubuntu 22.04 or newer, or the Docker runtime"

step "environment .venv ($("$python" --version), $python)"
[ -x .venv/bin/python ] && .venv/bin/python -c 'import sys' 2>/dev/null || rm -rf .venv
[ -d .venv ] || "$python" -m venv .venv
: >"$log"
pip() { # --no-compile: Python compiles what is really imported, once; the packages hold ten times as much
    .venv/bin/python -m pip --disable-pip-version-check install --no-compile --progress-bar off "$@" >>"$log" 2>&1 \
        || { tail -15 "$log" >&2; fail "pip install failed (whole log: $log)" "check the network and pip's settings, then make setup again"; }
}

torch_index=()
if [ -n "${LABS_TORCH_INDEX:-}" ]; then
    torch_index=(--index-url "$LABS_TORCH_INDEX")
elif .venv/bin/python - "$torch_cpu_index" <<'PY' 2>/dev/null
import sys, urllib.request
urllib.request.urlopen(sys.argv[1] + "/torch/", timeout=4).read(1)
PY
then
    torch_index=(--index-url "$torch_cpu_index")
fi
step "PyTorch for CPU (the largest download)${torch_index[1]:+ from ${torch_index[1]}}"
.venv/bin/python -c 'import importlib.metadata as m, sys; sys.exit(not m.version("torch").startswith("2.13.0"))' 2>/dev/null \
    || pip "${torch_index[@]}" "torch==2.13.0"
step "labctl and the serving packages"
pip -e ".[serve,export,load,chat,guard,dev]"
step "Triton Inference Server (its PyPI wheel) and the OpenVINO exporter"
# --no-deps: only the server inside the wheel is used; and optimum-intel would pull in a CUDA build of torchvision.
pip --no-deps "nvidia-pytriton==0.7.0" "optimum-intel==2.2.0"

step "checking that the server's python backend will find its Python"
.venv/bin/python - <<'PY' || fail "Triton cannot run with this Python" "the remedy above"
import sys
from labctl.errors import LabError
from labctl.runtimes.local import LocalRuntime
from labctl.workspace import Workspace
try:
    LocalRuntime(Workspace.find()).check("cpu")
except LabError as error:
    sys.exit(f"{error}")
PY
touch .venv/.ready
printf '  ok  ready after %d s: .venv/bin/labctl --help\n' $((SECONDS - started)) >&2
