#!/bin/sh
# pip, as the image builds use it. The project's own requirements come from pyproject.toml, so they are said once.
#   install-packages.sh --list [EXTRA]...     print the requirements of the project with these extras
#   install-packages.sh FILE                  install such a list into the current venv
#   install-packages.sh --project SRC TARGET  the project itself, without requirements, into a folder
set -eu
[ ! -s /run/secrets/ca ] || export PIP_CERT=/run/secrets/ca
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_PROGRESS_BAR=off PIP_FIND_LINKS=/wheels

case $1 in
--project) exec pip install --no-deps --target "$3" "$2" ;;
--list)
    shift
    exec python3 - "$(dirname "$0")/pyproject.toml" "$@" <<'PY'
import sys, tomllib
with open(sys.argv[1], "rb") as stream:
    project = tomllib.load(stream)["project"]
print(*project["dependencies"], *(r for e in sys.argv[2:] for r in project["optional-dependencies"][e]), sep="\n")
PY
    ;;
esac

torch=$(grep '^torch==' "$1" || true)
if [ "$torch" ]; then
    index=${LABS_TORCH_INDEX:-}
    cpu_index=https://download.pytorch.org/whl/cpu
    if [ -z "$index" ] && python3 -c "import urllib.request as u; u.urlopen('$cpu_index/torch/', timeout=4).read(1)" 2>/dev/null; then
        index=$cpu_index
    fi
    pip install ${index:+--index-url "$index"} "$torch"
fi
pip install -r "$1"
# --no-deps: only the server inside the first is used, and the second would pull in a CUDA build of torchvision.
[ ! "$torch" ] || pip install --no-deps nvidia-pytriton==0.7.0 optimum-intel==2.2.0
