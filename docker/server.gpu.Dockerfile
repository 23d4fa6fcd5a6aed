# A GPU server of NVIDIA's tritonserver image (Triton, CUDA, and TensorRT-LLM in those of that name) with what it lacks, for
# TensorRT-LLM and lab 01's native backends. All else is served by the target `gpu` of server.cpu.Dockerfile.
# Never built where the project is developed: that machine has neither a GPU nor a way to this registry.
#
#   LABS_PACKAGES  the file of requirements/ that holds what the labs' own models need on an image without PyTorch
ARG TRITON_IMAGE=nvcr.io/nvidia/tritonserver:25.02-trtllm-python-py3

FROM scratch AS wheels

FROM ${TRITON_IMAGE} AS nvidia
ARG LABS_PACKAGES=
COPY requirements/gpu.txt /build/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca --mount=type=bind,from=wheels,target=/wheels \
    [ ! -s /run/secrets/ca ] || export PIP_CERT=/run/secrets/ca; \
    export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_FIND_LINKS=/wheels; \
    if [ -n "$LABS_PACKAGES" ]; then pip install --require-hashes -r "/build/$LABS_PACKAGES" || exit 1; fi
# Only what the models import is added, and not by pip.
COPY src/labsched /opt/labs/labsched
COPY src/labserve /opt/labs/labserve
COPY docker/serve.sh /usr/local/bin/serve
# The user has no entry in /etc/passwd, and PyTorch's and Triton's caches ask for its name: USER and LOGNAME give one.
ENV PYTHONPATH=/opt/labs HOME=/tmp USER=labs LOGNAME=labs PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65534:65534
ENTRYPOINT ["serve"]
