#!/bin/sh
# An engine for several GPUs: launch-ranks LAUNCHER WORLD_SIZE
# The release's own script starts one server per GPU under mpirun, in the background, and ends. This stays for as long
# as they do, and hands a request to stop on to them.
set -eu
python3 "$1" --world_size="$2" --model_repo=/models
ranks=$(pgrep -n mpirun)
trap 'kill -TERM "$ranks"' TERM INT
while kill -0 "$ranks" 2>/dev/null; do
    sleep 1 &
    wait $! || true
done
