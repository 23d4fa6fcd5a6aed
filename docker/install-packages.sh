#!/bin/sh
# pip, as `make setup` and the image builds use it: what requirements/ locks, by version and hash, and nothing else.
#   install-packages.sh FILE...               files of requirements/; of torch.txt the CPU build, without a hash
#   install-packages.sh --project SRC [TARGET]  the project itself, into a folder; without one as a link to SRC
# LABS_TORCH_INDEX   a package index for PyTorch, of CPU builds or (docs/operate/gpu.md) of CUDA builds with what they require;
#                    default: the CPU build, from where pip is set up to look, else from PyTorch's own index
# LABS_PIP           the pip to use (default: pip)        LABS_COMPILE   --no-compile leaves compiling to the first import
# LABS_DOWNLOAD      a folder: the wheels are downloaded into it, and nothing is installed
set -eu
torch_cpu_index=https://download.pytorch.org/whl/cpu
pip=${LABS_PIP:-pip}

# What the environment and pip's files say of these holds; all else (another interpreter or folder, constraints, a dry run) is
# meant for other environments.
settings='index-url|extra-index-url|no-index|find-links|trusted-host|keyring-provider|proxy|cert|client-cert|use-feature'
settings="^PIP_($(echo "$settings|cache-dir|no-cache-dir|timeout|default-timeout|retries|resume-retries" | tr a-z- A-Z_))$"
for name in $(env | sed -n 's/^\(PIP_[A-Z_]*\)=.*/\1/p'); do
    echo "$name" | grep -Eq "$settings|^PIP_(CONFIG_FILE|BREAK_SYSTEM_PACKAGES)$" || unset "$name"
done
while IFS='=' read -r key value; do
    name=PIP_$(echo "${key#*.}" | tr a-z- A-Z_)
    value=${value#?}
    echo "$name" | grep -Eq "$settings" && ! env | grep -q "^$name=." || continue
    export "$name=$(printf %b "${value%?}")"
done <<END
$($pip config list | sort -r | grep -E '^(install|global)\.')
END
[ ! -s /run/secrets/ca ] || export PIP_CERT=/run/secrets/ca
export PIP_CONFIG_FILE=/dev/null PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_PROGRESS_BAR=off

# --no-deps: the lock is complete, and nothing comes that is not in it.
install() { fetch --no-deps "$@"; }
fetch() {
    if [ -n "${LABS_DOWNLOAD:-}" ]; then $pip download --dest "$LABS_DOWNLOAD" "$@"; return; fi
    $pip install ${LABS_COMPILE:-} "$@"
}

# On x86_64 named as +cpu: under the plain version the package index has the CUDA build, which is gigabytes. For ARM its
# build is a CPU build, in the version that torch.txt has for it.
install_torch() {
    other="== 'aarch64'" cpu=+cpu
    [ "$(uname -m)" != aarch64 ] || other="!= 'aarch64'" cpu=
    wanted=$(grep '^torch==' "$1" | grep -v "platform_machine $other" | cut -d ' ' -f 1)
    if [ -z "${LABS_DOWNLOAD:-}" ] && $pip show torch 2>/dev/null | grep -q "^Version: ${wanted#*==}"; then
        echo "PyTorch is there"
    elif [ -n "${LABS_TORCH_INDEX:-}" ]; then
        fetch --retries 5 --timeout 30 --index-url "$LABS_TORCH_INDEX" "$wanted" # a CUDA build comes with its libraries
    else
        echo "$wanted$cpu from where pip is set up to look, else from $torch_cpu_index"
        install "$wanted$cpu" || install --retries 5 --timeout 30 --index-url "$torch_cpu_index" "$wanted$cpu"
    fi
}

if [ "$1" = --project ]; then
    if [ $# = 3 ]; then install --no-build-isolation --target "$3" "$2"; else install --no-build-isolation --editable "$2"; fi
    exit
fi
for file; do
    case $file in
    *torch.txt) install_torch "$file" ;;
    *) install --require-hashes -r "$file" ;;
    esac
done
