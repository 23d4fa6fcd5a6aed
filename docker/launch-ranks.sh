#!/bin/sh
# An engine for several GPUs: launch-ranks LAUNCHER WORLD_SIZE
# The release's own script starts one server per GPU under mpirun, in the background, and ends. This stays for as long
# as they do, and hands a request to stop on to them. Exit status 1: they ended by themselves.
set -eu
python3 "$1" --world_size="$2" --model_repo=/models
tries=0
# 0.5.0's script may end before its mpirun has begun; OpenMPI 5's mpirun becomes prterun.
until ranks=$(pgrep -n 'mpirun|prterun'); do
    tries=$((tries + 1))
    [ "$tries" -lt 50 ] || exit 1
    sleep 0.2
done
status=1
trap 'status=0; kill -TERM "$ranks"' TERM INT
while kill -0 "$ranks" 2>/dev/null; do
    sleep 1 &
    wait $! || true
done
exit "$status"
