#!/usr/bin/env bash
# Write README.md, docs/ and the labs' lessons as web pages. A warning, such as a link that leads nowhere, is an error.
#   scripts/site/build.sh FOLDER    what is in FOLDER is removed first
set -euo pipefail
rm -rf "${1:?a folder to write to}"
folder=$(realpath "$1")
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
.venv/site/bin/python -m sphinx --quiet --fail-on-warning --keep-going --conf-dir scripts/site --doctree-dir "$work" . "$folder"
