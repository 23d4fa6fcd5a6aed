# The GPU server: NVIDIA's tritonserver image (Triton, CUDA, TensorRT-LLM) with labserve and labctl added.
# Never built where the project is developed: that machine has neither a GPU nor a way to this registry.
ARG TRITON_IMAGE=nvcr.io/nvidia/tritonserver:24.10-trtllm-python-py3

FROM scratch AS wheels

FROM ${TRITON_IMAGE}
COPY pyproject.toml /src/
COPY src /src/src
# The image's own torch, transformers and numpy fit its CUDA and TensorRT-LLM: only what is missing is added.
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca --mount=type=bind,from=wheels,target=/wheels \
    [ ! -s /run/secrets/ca ] || export PIP_CERT=/run/secrets/ca; \
    pip freeze | grep -iE '^(torch|transformers|numpy|tokenizers|huggingface.hub)==' >/tmp/constraints.txt || true; \
    pip install --find-links /wheels -c /tmp/constraints.txt click filelock huggingface_hub psutil pydantic pyyaml \
        prometheus-client "tritonclient[grpc,http]" \
    && touch /src/README.md && pip install --no-deps /src && rm -rf /src /tmp/constraints.txt
ENV HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65534:65534
ENTRYPOINT ["tritonserver"]
