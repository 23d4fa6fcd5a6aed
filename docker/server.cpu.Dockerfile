# The server: Debian slim, Triton from its PyPI wheel, PyTorch, transformers and OpenVINO.
# Also the engine-builder: everything that makes weights and engines runs in the image that will serve them.
# Target `vllm`: the same image with the packages of requirements/vllm.txt, which Python finds before its own; target `gpu`
# with those of requirements/vllm-gpu.txt: PyTorch and vLLM for CUDA, for the NVIDIA driver of the machine.
#
# Build context: the checkout. Named context `wheels`: a folder of wheels that pip looks into first (empty by default).
# Secret `ca`: the CA bundle of a company proxy. Nothing of either stays in the image.

FROM scratch AS wheels

FROM debian:bookworm-slim AS python
# The server needs the interpreter and the shared libpython of its stub; python3-venv stays in the build stages.
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
ARG LABS_TORCH_INDEX=
COPY requirements/torch.txt requirements/server.txt /build/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca --mount=type=bind,from=wheels,target=/wheels \
    /build/install-packages.sh /build/torch.txt /build/server.txt
COPY docker/slim-server.sh /build/
RUN /build/slim-server.sh

FROM tools AS labs
# An edited README must not rebuild an image; the package's metadata only needs that there is one.
COPY requirements/build.txt /build/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca --mount=type=bind,from=wheels,target=/wheels \
    /build/install-packages.sh /build/build.txt
COPY pyproject.toml /src/
COPY src /src/src
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca --mount=type=bind,from=wheels,target=/wheels \
    touch /src/README.md && /build/install-packages.sh --project /src /opt/labs-code

FROM python AS base
COPY --from=packages /opt/labs /opt/labs
COPY --from=packages /opt/triton /opt/triton
ENV PATH=/opt/labs/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TRITON_HOME=/opt/triton
# Compose gives the caller's own uid; alone, the image is nobody's.
USER 65534:65534
EXPOSE 8000 8001 8002
ENTRYPOINT ["serve"]

FROM tools AS vllm-packages
COPY requirements/vllm.txt /build/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca --mount=type=bind,from=wheels,target=/wheels \
    LABS_COMPILE="--no-compile --target /opt/vllm" /build/install-packages.sh /build/vllm.txt \
    && python3 -c 'import compileall; compileall.compile_dir("/opt/vllm", quiet=2, workers=0)'

FROM tools AS gpu-packages
COPY requirements/vllm-gpu.txt /build/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca --mount=type=bind,from=wheels,target=/wheels \
    LABS_COMPILE="--no-compile --target /opt/vllm" /build/install-packages.sh /build/vllm-gpu.txt \
    && python3 -c 'import compileall; compileall.compile_dir("/opt/vllm", quiet=2, workers=0)'

FROM base AS gpu
USER 0
# Triton (PyTorch's compiler of kernels, which vLLM uses) compiles its launchers with the machine's own C compiler.
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q && apt-get install -q -y --no-install-recommends gcc libc6-dev libpython3.11-dev
USER 65534:65534
COPY --from=gpu-packages /opt/vllm /opt/vllm
ENV LABS_PACKAGES=/opt/vllm PYTHONPATH=/opt/vllm:/opt/labs/lib/python3.11/site-packages \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=labs /opt/labs-code /opt/labs/lib/python3.11/site-packages
COPY docker/serve.sh /usr/local/bin/serve

FROM base AS vllm
USER 0
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q && apt-get install -q -y --no-install-recommends libnuma1
USER 65534:65534
COPY --from=vllm-packages /opt/vllm /opt/vllm
# Triton's stubs leave PYTHONPATH unread: labserve/serving.py reads LABS_PACKAGES.
ENV LABS_PACKAGES=/opt/vllm PYTHONPATH=/opt/vllm:/opt/labs/lib/python3.11/site-packages
COPY --from=labs /opt/labs-code /opt/labs/lib/python3.11/site-packages
COPY docker/serve.sh /usr/local/bin/serve

FROM base AS cpu
COPY --from=labs /opt/labs-code /opt/labs/lib/python3.11/site-packages
COPY docker/serve.sh /usr/local/bin/serve
