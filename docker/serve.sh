#!/bin/sh
# tritonserver with what its image's layout needs; all further arguments are Triton's own.
set -eu
trap '' XFSZ # without the signal, a file at the size limit of compose.yaml only fails to grow
# Some of Triton's APIs (LABS_CLOSED) are for labctl alone. They need the secret, which is a file: others can read the
# environment and labels. A container that was started by hand has no such file; a random secret then closes these APIs.
secret=$(cat /run/secrets/triton 2>/dev/null || true)
closed=${LABS_CLOSED-model-repository,trace,logging,shared-memory}:labs-secret=${secret:-$(cat /proc/sys/kernel/random/uuid)}
set -- --grpc-restricted-protocol="$closed" "$@"
if [ "${TRITON_HOME:-}" ]; then # the wheel's; its libraries are for it alone: Python in this container must not find them
    export LD_LIBRARY_PATH="$TRITON_HOME/wheel-libs:$TRITON_HOME/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" # the driver's
    set -- --backend-directory="$TRITON_HOME/backends" --cache-directory="$TRITON_HOME/caches" "$@"
    exec "$TRITON_HOME/bin/tritonserver" --http-restricted-api="$closed" "$@"
fi
exec tritonserver --http-restricted-api="$closed" "$@"
