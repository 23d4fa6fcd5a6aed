#!/bin/sh
# Install the labs from the bundle that this file came in, without any network. Everything is checked first; what does
# not fit is refused by name, and nothing has been installed by then. Written by `labctl bundle create`.
#   mkdir labs && cd labs && tar xf BUNDLE && ./install
# LABS_PYTHON   the Python to use            LABS_CACHE   where weights and engines go (default ~/.cache/triton-labs)
set -eu
cd "$(dirname "$0")"
format=1

say() { printf '  %s\n' "$1" >&2; }
fail() { printf 'error: %s\ntry:   %s\n' "$1" "$2" >&2; exit 1; }
fact() { sed -n "s/^$1=//p" .bundle/about; }

[ -f .bundle/about ] && [ -f .bundle/SHA256SUMS ] || fail "this is not a whole bundle: .bundle/ is incomplete" "tar xf BUNDLE again, in an empty folder"
[ "$(fact format)" = "$format" ] || fail "the bundle has format $(fact format), this installer knows $format" "tar xf BUNDLE again, in an empty folder"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
[ "$(fact version)" = "$version" ] || fail "the bundle is of version $(fact version), the checkout here is of $version" "tar xf BUNDLE again, in an empty folder"
[ "$(fact machine)" = "$(uname -sm)" ] || fail "the bundle is for $(fact machine), this machine is $(uname -sm)" "a bundle made on such a machine"
python=${LABS_PYTHON:-}
if [ -z "$python" ]; then
    for name in "python$(fact python)" python3; do
        "$name" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$(fact python)')" 2>/dev/null && python=$name && break
    done
fi
[ -n "$python" ] && "$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$(fact python)')" 2>/dev/null \
    || fail "the bundle's wheels are for Python $(fact python), which is not here" "install python$(fact python), python$(fact python)-venv and libpython$(fact python), or LABS_PYTHON=/path/to/it ./install"
command -v make >/dev/null || fail "make is not here" "apt-get install make"

say "..  checking $(wc -l <.bundle/SHA256SUMS) files"
if ! damaged=$(LC_ALL=C sha256sum --check --quiet --strict .bundle/SHA256SUMS 2>/dev/null); then
    printf '%s\n' "$damaged" | head -5 >&2
    fail "the bundle is damaged: the files named above are not what was packed" "copy the bundle again, and tar xf it in an empty folder"
fi

# `labctl undo` and the word "edited" compare with this copy, because a bundle has no git.
[ -d .bundle/shipped ] || { mkdir .bundle/shipped.new && cp -R model_repos .bundle/shipped.new/ && mv .bundle/shipped.new .bundle/shipped; }

cache=${LABS_CACHE:-$HOME/.cache/triton-labs}
for kind in .bundle/cache/*/; do
    [ -d "$kind" ] || continue
    for made in "$kind"*/; do
        place=$cache/$(basename "$kind")/$(basename "$made")
        [ -e "$place" ] && continue
        mkdir -p "$(dirname "$place")"
        part=$(mktemp -d "$(dirname "$place")/.$(basename "$made").new-XXXXXX")
        cp -R --preserve=timestamps "$made." "$part" && chmod 755 "$part" && mv -T "$part" "$place"
    done
done
say "ok  weights and engines are in $cache"

if [ -f .bundle/images.tar ]; then
    if docker info >/dev/null 2>&1; then
        docker load --quiet --input .bundle/images.tar >&2
    else
        say "..  no Docker engine answers: the container images are not loaded (the local runtime needs none)"
    fi
fi

# Only the bundle's wheels: whatever this machine's pip is set up with is left aside.
export PIP_NO_INDEX=1 PIP_CONFIG_FILE=/dev/null
PIP_FIND_LINKS=.bundle/wheels LABS_TORCH_INDEX='' make setup PYTHON="$python"
say "ok  labs $(fact labs) are ready: make lab-iterative"
