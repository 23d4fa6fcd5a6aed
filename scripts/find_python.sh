#!/usr/bin/env bash
# Print the first Python 3.11 or 3.12 of this machine that has a shared libpython (Triton's python backend links to it).
# If none has it, print the first 3.11 or 3.12; if there is neither, python3, so that setup can say what is wrong with it.
# The Python that LABS_PYTHON names is tried first, then that of .venv.
set -u
first=""
made_by=$(.venv/bin/python -c 'import os, sys; print(os.path.realpath(sys.executable))' 2>/dev/null)
for name in ${LABS_PYTHON:-} $made_by python3 python3.11 python3.12 /usr/bin/python3; do
    path=$(command -v "$name" 2>/dev/null) || continue
    "$path" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null || continue
    first=${first:-$path}
    if "$path" - <<'PY' 2>/dev/null
import os, sys, sysconfig
name = sysconfig.get_config_var("INSTSONAME") or ""
folders = [os.path.join(sys.base_prefix, "lib"), sysconfig.get_config_var("LIBDIR") or "",
           "/usr/lib/" + (sysconfig.get_config_var("MULTIARCH") or "")]
sys.exit(not (".so" in name and any(os.path.isfile(os.path.join(f, name)) for f in folders)))
PY
    then
        echo "$path"
        exit 0
    fi
done
echo "${first:-python3}"
