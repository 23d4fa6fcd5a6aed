"""Our own GPU image, built whole: everything but the GPU.

It needs 30 GB of disk while it is built: `.ci/run` builds it if its files have changed, and `.ci/night` always.
"""

from __future__ import annotations

import docker
import pytest
from checkout import ROOT
from docker.errors import ContainerError
from environments import COSTLY
from image_build import built

pytestmark = [pytest.mark.proof, COSTLY]

ASKS = """
from labserve.vllm.setup import set_up_vllm
words = {"gpt_model_path": "/model", "gpt_model_type": "inflight_fused_batching", "max_tokens_in_paged_kv_cache": "512"}
set_up_vllm(lambda name: words.get(name, ""), "cuda:0")
"""


@pytest.fixture(scope="module")
def image(engine: docker.DockerClient) -> str:
    return built("labs-test:own-gpu", "--target", "gpu", "--file", str(ROOT / "docker/Dockerfile"), str(ROOT))


def test_triton_starts_in_it(engine: docker.DockerClient, image: str) -> None:
    shows = ["-c", "serve --help 2>&1 || true"]  # after which Triton exits with 1
    assert b"Usage: tritonserver" in engine.containers.run(image, shows, entrypoint=["sh"], remove=True)


def test_it_has_vllm_and_pytorch_for_cuda(engine: docker.DockerClient, image: str) -> None:
    says = "import torch; from vllm import LLMEngine; print(torch.version.cuda, torch.cuda.is_available())"
    said = engine.containers.run(image, ["-c", says], entrypoint=["python3"], remove=True).decode().split()
    assert said[0].startswith("13.") and said[1] == "False"


def test_without_a_gpu_a_model_says_so(engine: docker.DockerClient, image: str) -> None:
    model = {str(ROOT / "labs/shared/models/tiny-llama"): {"bind": "/model", "mode": "ro"}}
    with pytest.raises(ContainerError) as raised:
        engine.containers.run(image, ["-c", ASKS], entrypoint=["python3"], volumes=model, remove=True)
    assert "ValueError: there is no NVIDIA GPU" in str(raised.value)
