#!/bin/sh
# pip, as the image builds use it. The project's own requirements come from pyproject.toml, so they are said once.
#   install-packages.sh [EXTRA]...            the requirements of the project with these extras, into the current venv
#   install-packages.sh --project SRC TARGET  the project itself, without requirements, into a folder
set -eu
[ ! -s /run/secrets/ca ] || export PIP_CERT=/run/secrets/ca
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_PROGRESS_BAR=off PIP_FIND_LINKS=/wheels
here=$(dirname "$0")

if [ "${1:-}" = --project ]; then
    exec pip install --no-deps --target "$3" "$2"
fi

serves=$(case " $* " in *" serve "*) echo yes ;; esac)
if [ "$serves" ]; then
    index=${LABS_TORCH_INDEX:-}
    cpu_index=https://download.pytorch.org/whl/cpu
    if [ -z "$index" ] && python3 -c "import urllib.request as u; u.urlopen('$cpu_index/torch/', timeout=4).read(1)" 2>/dev/null; then
        index=$cpu_index
    fi
    pip install ${index:+--index-url "$index"} torch==2.13.0
fi
python3 - "$here/pyproject.toml" "$@" >/tmp/requirements.txt <<'PY'
import sys, tomllib
with open(sys.argv[1], "rb") as stream:
    project = tomllib.load(stream)["project"]
print(*project["dependencies"], *(r for e in sys.argv[2:] for r in project["optional-dependencies"][e]), sep="\n")
PY
pip install -r /tmp/requirements.txt
rm /tmp/requirements.txt
# --no-deps: only the server inside the first is used, and the second would pull in a CUDA build of torchvision.
[ ! "$serves" ] || pip install --no-deps nvidia-pytriton==0.7.0 optimum-intel==2.2.0
