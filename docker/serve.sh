#!/bin/sh
# tritonserver with what its image's layout needs; all further arguments are Triton's own.
set -eu
trap '' XFSZ # a file that would be larger than compose.yaml allows fails to grow, and nobody dies of it
# Some of its APIs are labctl's alone: the secret is a file, which neither the environment nor a label shows. Started
# by hand there is none, and one that nobody knows closes them to everybody. LABS_CLOSED names them.
secret=$(cat /run/secrets/triton 2>/dev/null || true)
closed=${LABS_CLOSED-model-repository,trace,logging,shared-memory}:labs-secret=${secret:-$(cat /proc/sys/kernel/random/uuid)}
set -- --grpc-restricted-protocol="$closed" "$@"
if [ "${TRITON_HOME:-}" ]; then # the wheel's; its libraries are for it alone: Python in this container must not find them
    export LD_LIBRARY_PATH="$TRITON_HOME/wheel-libs:$TRITON_HOME/lib"
    set -- --backend-directory="$TRITON_HOME/backends" --cache-directory="$TRITON_HOME/caches" "$@"
    exec "$TRITON_HOME/bin/tritonserver" --http-restricted-api="$closed" "$@"
fi
exec tritonserver --http-restricted-api="$closed" "$@"
