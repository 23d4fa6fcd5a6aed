#!/bin/sh
# A script of TensorRT-LLM's examples, from the first folder that has it: run-example FOLDER:FOLDER SCRIPT [ARGUMENT]...
# Upstream's image and its documents disagree on where they are.
set -eu
folders=$1 script=$2
shift 2
IFS=:
for folder in $folders; do
    [ ! -f "$folder/$script" ] || exec python3 "$folder/$script" "$@"
done
unset IFS
echo "TensorRT-LLM's $script is in none of: $folders" >&2
exit 1
