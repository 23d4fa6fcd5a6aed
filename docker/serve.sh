#!/bin/sh
# tritonserver with what the wheel's layout needs; all further arguments are Triton's own.
# Its libraries are for it alone: Python in the same container must not find them.
set -eu
export LD_LIBRARY_PATH="$TRITON_HOME/wheel-libs:$TRITON_HOME/lib"
exec "$TRITON_HOME/bin/tritonserver" --backend-directory="$TRITON_HOME/backends" "$@"
