# labctl with what requirements/$PACKAGES.txt locks (client, with Envoy; or chat), no torch, no Triton.

FROM scratch AS wheels

FROM debian:bookworm-slim AS python
RUN rm -f /etc/apt/apt.conf.d/docker-clean \
    && printf 'path-exclude=/usr/share/%s/*\n' doc man locale info >/etc/dpkg/dpkg.cfg.d/slim
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q && apt-get install -q -y --no-install-recommends ca-certificates libpython3.11 python3

FROM python AS tools
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q && apt-get install -q -y --no-install-recommends python3-venv
RUN python3 -m venv /opt/labs
ENV PATH=/opt/labs/bin:$PATH PIP_FIND_LINKS=/wheels
COPY docker/install-packages.sh /build/

FROM tools AS packages
ARG PACKAGES=client
COPY requirements/$PACKAGES.txt /build/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca --mount=type=bind,from=wheels,target=/wheels \
    /build/install-packages.sh /build/$PACKAGES.txt
# Remove what no client reads: pip, packages' own tests, the symbols of libraries, and transformers' models, which need
# PyTorch. (Libraries in *.libs have been rewritten by the wheels' makers: strip would break them.)
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q && apt-get install -q -y --no-install-recommends binutils
RUN cd /opt/labs/lib/python3.11/site-packages \
    && rm -rf pip pip-*.dist-info setuptools setuptools-*.dist-info pkg_resources _distutils_hack distutils-precedence.pth \
        /opt/labs/bin/pip* \
    && find . -path '*/transformers/models/*' -not -path '*/models/auto/*' \( -name 'modeling_*' -o -name 'modular_*' -o -name 'convert_*' \
        -o -name 'image_processing_*' -o -name 'video_processing_*' -o -name 'processing_*' \) -delete \
    && find . -type d \( -path './numpy/*/tests' -o -path './matplotlib/tests' -o -path './gevent/tests' -o -path './pandas/tests' \) \
        -prune -exec rm -rf {} + \
    && find . -name '*.so' -not -path './*.libs/*' -exec strip --strip-unneeded {} +

FROM tools AS labs
# An edited README must not rebuild an image; the package's metadata only needs that there is one.
COPY requirements/build.txt /build/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca --mount=type=bind,from=wheels,target=/wheels \
    /build/install-packages.sh /build/build.txt
COPY pyproject.toml /src/
COPY src /src/src
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca --mount=type=bind,from=wheels,target=/wheels \
    touch /src/README.md && /build/install-packages.sh --project /src /opt/labs-code

FROM python
# For people: compose.yaml's service `client` is a shell.
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q && apt-get install -q -y --no-install-recommends curl nano
COPY --from=packages /opt/labs /opt/labs
COPY --from=labs /opt/labs-code/bin/labctl /opt/labs/bin/
COPY --from=labs /opt/labs-code /opt/labs/lib/python3.11/site-packages
ENV PATH=/opt/labs/bin:$PATH \
    HOME=/tmp \
    MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 65534:65534
ENTRYPOINT ["python"]
