# labctl with what requirements/$PACKAGES.txt locks (client, with Envoy; or chat), no torch, no Triton.

FROM scratch AS wheels

FROM debian:bookworm-slim AS python
RUN rm -f /etc/apt/apt.conf.d/docker-clean \
    && printf 'path-exclude=/usr/share/%s/*\n' doc man locale info >/etc/dpkg/dpkg.cfg.d/slim
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q && apt-get install -q -y --no-install-recommends ca-certificates libpython3.11 python3

FROM python AS packages
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q && apt-get install -q -y --no-install-recommends python3-venv
RUN python3 -m venv /opt/labs
ENV PATH=/opt/labs/bin:$PATH PIP_FIND_LINKS=/wheels
ARG PACKAGES=client
COPY docker/install-packages.sh requirements/$PACKAGES.txt /build/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca --mount=type=bind,from=wheels,target=/wheels \
    /build/install-packages.sh /build/$PACKAGES.txt

FROM packages AS labs
# An edited README must not rebuild an image; the package's metadata only needs that there is one.
COPY requirements/build.txt /build/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca --mount=type=bind,from=wheels,target=/wheels \
    /build/install-packages.sh /build/build.txt
COPY pyproject.toml /src/
COPY src /src/src
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca --mount=type=bind,from=wheels,target=/wheels \
    touch /src/README.md && /build/install-packages.sh --project /src /opt/labs-code

FROM python
COPY --from=packages /opt/labs /opt/labs
COPY --from=labs /opt/labs-code /opt/labs/lib/python3.11/site-packages
ENV PATH=/opt/labs/bin:$PATH \
    HOME=/tmp \
    MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 65534:65534
ENTRYPOINT ["python"]
