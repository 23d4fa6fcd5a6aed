"""What `kubectl kustomize` builds of deploy/ is valid, restricted, and asks the server how it is."""

from __future__ import annotations

import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml
from checkout import ROOT
from programs import needs

VERSIONS = ("1.32.0", "1.36.0")  # the oldest and the newest that are in use


@pytest.mark.night
@needs("kubectl")
@pytest.mark.parametrize("folder", ["kubernetes", "kubernetes-gpu"])
def test_it_is_strictly_valid_and_its_pod_restricted(folder: str) -> None:
    argv = ["kubectl", "kustomize", str(ROOT / "deploy" / folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    resources: dict[str, Any] = {found["kind"]: found for found in yaml.safe_load_all(done.stdout)}
    assert set(resources) == {"Deployment", "Service"}
    for version in VERSIONS:
        for resource in resources.values():
            kubernetes_validate.validate(resource, version, strict=True)

    template, service = resources["Deployment"]["spec"]["template"], resources["Service"]["spec"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    pod = template["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    (container,) = pod["containers"]
    # The profile "restricted" (kubernetes.io/docs/concepts/security/pod-security-standards), and a read-only root.
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
    assert {port["targetPort"] for port in service["ports"]} == {port["name"] for port in container["ports"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    if folder == "kubernetes-gpu":
        assert pod["runtimeClassName"] == "nvidia" and container["resources"]["limits"]["nvidia.com/gpu"] == 1
        assert "exec" in container["livenessProbe"] and "httpGet" not in container["livenessProbe"]
        assert "LD_LIBRARY_PATH" in [variable["name"] for variable in container["env"]]
