#!/bin/sh
# Remove what no client reads: pip, packages' own tests, the symbols of libraries, and transformers' models, which need
# PyTorch. (Libraries in *.libs have been rewritten by the wheels' makers: strip would break them.)
set -eu
cd /opt/labs/lib/python3.11/site-packages
rm -rf pip pip-*.dist-info setuptools setuptools-*.dist-info pkg_resources _distutils_hack distutils-precedence.pth \
    /opt/labs/bin/pip*
find . -path '*/transformers/models/*' -not -path '*/models/auto/*' \( -name 'modeling_*' -o -name 'modular_*' -o -name 'convert_*' \
    -o -name 'image_processing_*' -o -name 'video_processing_*' -o -name 'processing_*' \) -delete
find . -type d \( -path './numpy/*/tests' -o -path './matplotlib/tests' -o -path './gevent/tests' -o -path './pandas/tests' \) \
    -prune -exec rm -rf {} +
find . -name '*.so' -not -path './*.libs/*' -exec strip --strip-unneeded {} +
