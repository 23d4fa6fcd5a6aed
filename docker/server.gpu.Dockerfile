# A GPU server of NVIDIA's tritonserver image (Triton, CUDA, and TensorRT-LLM in those of that name) with what it lacks, for
# TensorRT-LLM and lab 01's native backends. All else is served by the target `gpu` of server.cpu.Dockerfile.
# Never built where the project is developed: that machine has neither a GPU nor a way to this registry.
#
#   LABS_APP       image: templates, scripts and examples are below /app already; source: they are added from the
#                  commits LABS_BACKEND_COMMIT (triton-inference-server/tensorrtllm_backend) and LABS_TRTLLM_COMMIT
#   LABS_INSTALL   what pip installs for the engine builder, where the image has only the backend (0.5.0)
#   LABS_PACKAGES  the file of requirements/ that holds what the labs' own models need on an image without PyTorch
ARG TRITON_IMAGE=nvcr.io/nvidia/tritonserver:25.02-trtllm-python-py3
ARG LABS_APP=image

FROM scratch AS wheels

FROM scratch AS app-image

FROM ${TRITON_IMAGE} AS unpacked
ARG LABS_BACKEND_COMMIT=47b609b670d6bb33a5ff113d98ad8a44d961c5c6
ARG LABS_TRTLLM_COMMIT=ffd5af342a817a2689d38e4af2cc59ded877e339
ADD https://github.com/triton-inference-server/tensorrtllm_backend/archive/${LABS_BACKEND_COMMIT}.tar.gz /tmp/backend.tar.gz
ADD https://github.com/NVIDIA/TensorRT-LLM/archive/${LABS_TRTLLM_COMMIT}.tar.gz /tmp/trtllm.tar.gz
RUN mkdir -p /app-source/tensorrt_llm \
    && tar -xzf /tmp/backend.tar.gz -C /app-source --strip-components=1 --wildcards '*/all_models' '*/scripts' '*/tools' \
    && tar -xzf /tmp/trtllm.tar.gz -C /app-source/tensorrt_llm --strip-components=1 --wildcards '*/examples'

FROM scratch AS app-source
COPY --from=unpacked /app-source /

FROM app-${LABS_APP} AS app

FROM ${TRITON_IMAGE} AS nvidia
ARG LABS_INSTALL=
ARG LABS_PACKAGES=
COPY --from=app / /app/
COPY requirements/gpu.txt /build/
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca --mount=type=bind,from=wheels,target=/wheels \
    [ ! -s /run/secrets/ca ] || export PIP_CERT=/run/secrets/ca; \
    export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_FIND_LINKS=/wheels; \
    if [ -n "$LABS_PACKAGES" ]; then pip install --require-hashes -r "/build/$LABS_PACKAGES" || exit 1; fi; \
    if [ -n "$LABS_INSTALL" ]; then \
        # Sources of that time (mpi4py, TensorRT-LLM) do not build with a setuptools whose distutils has no dry_run.
        echo 'setuptools<81' > /build/constraints.txt; \
        export PIP_CONSTRAINT=/build/constraints.txt PIP_BUILD_CONSTRAINT=/build/constraints.txt; \
        pip install --extra-index-url https://pypi.nvidia.com $LABS_INSTALL || exit 1; \
        libs=$(pip show tensorrt_llm | sed -n 's/^Location: //p')/tensorrt_llm/libs; \
        # From source it comes without its libraries: the backend has them.
        [ -e "$libs" ] || { mkdir "$libs" && cp /opt/tritonserver/backends/tensorrtllm/* "$libs"; }; \
    fi
# The image's own Python is older than labctl's on some: only what the models import is added, and not by pip.
COPY src/labsched /opt/labs/labsched
COPY src/labserve /opt/labs/labserve
COPY docker/serve.sh /usr/local/bin/serve
COPY docker/launch-ranks.sh /usr/local/bin/launch-ranks
# The user has no entry in /etc/passwd, and PyTorch's and Triton's caches ask for its name: USER and LOGNAME give one.
# Ranks of OpenMPI may not read each other's memory in a container without capabilities, and so need not try (by the
# names of OpenMPI 4 and 5).
ENV PYTHONPATH=/opt/labs HOME=/tmp USER=labs LOGNAME=labs PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_smsc=^cma
USER 65534:65534
ENTRYPOINT ["serve"]
