#!/bin/sh
# Remove what a server never reads, before the environment is copied into the image, and lay out Triton's parts.
set -eu
site=/opt/labs/lib/python3.11/site-packages
triton=$site/pytriton/tritonserver

mkdir -p /opt/triton/backends/python /opt/triton/bin
mv "$triton/bin/tritonserver" /opt/triton/bin/
mv "$triton/python_backend_stubs/3.11/triton_python_backend_stub" /opt/triton/backends/python/
mv "$triton/backends/python/libtriton_python.so" "$triton/backends/python/triton_python_backend_utils.py" \
    /opt/triton/backends/python/
[ ! -d "$triton/caches" ] || mv "$triton/caches" /opt/triton/caches
[ ! -d "$triton/lib" ] || mv "$triton/lib" /opt/triton/lib
mv "$site/nvidia_pytriton.libs" /opt/triton/wheel-libs
chmod 755 /opt/triton/bin/tritonserver /opt/triton/backends/python/triton_python_backend_stub
rm -rf "$site"/pytriton "$site"/pip "$site"/pip-*.dist-info /opt/labs/bin/pip*
rm -rf "$site"/torch/include "$site"/torch/test "$site"/torch/share
# torch will not be imported without its shared-memory manager; the rest of its bin/ are compilers and tests.
find "$site/torch/bin" -type f ! -name torch_shm_manager -delete
find "$site" -type d \( -name tests -o -name test \) -path '*/site-packages/*' \
    \( -path '*/pandas/*' -o -path '*/scipy/*' -o -path '*/sklearn/*' -o -path '*/sympy/*' -o -path '*/numpy/*' \
       -o -path '*/matplotlib/*' -o -path '*/networkx/*' -o -path '*/onnx/*' \) -prune -exec rm -rf {} +
find "$site" -name '*.a' -delete
