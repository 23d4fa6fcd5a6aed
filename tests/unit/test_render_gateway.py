"""``labctl render --target kubernetes --set gateway=NAME``: strictly valid by upstream's schemas, and consistent."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
from jsonschema import Draft202012Validator, ValidationError
from programs import needs
from rendered_targets import built, of_kind, pods, rendered

from labctl.deploy.stack import FOLDER
from labkit.strict_yaml import parse_yaml
from labserve.observe.gauges import METRICS

STACK, GATEWAY = "iterative", "inference-gateway"
EACH = pytest.mark.parametrize("profile", ["cpu", "gpu"])
NAMES = {"type": "string", "minLength": 1, "maxLength": 253}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}


def thing(required: str = "", **properties: Any) -> dict[str, Any]:
    """A schema of an object that takes these fields and no other."""
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


def items(schema: dict[str, Any], least: int = 1, most: int = 16) -> dict[str, Any]:
    return {"type": "array", "items": schema, "minItems": least, "maxItems": most}


def resource(version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    head = {"apiVersion": {"const": version}, "kind": {"const": kind}}
    return thing("apiVersion kind metadata spec", **head, metadata={"type": "object", "required": ["name"]}, spec=spec)


REFERENCE = {"group": {"type": "string"}, "kind": NAMES, "name": NAMES, "namespace": NAMES}
LABELS = {"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}, "minProperties": 1}
# The fields of inference.networking.k8s.io/v1 (InferencePool) and gateway.networking.k8s.io/v1 (HTTPRoute), as their
# custom resource definitions have them; of HTTPRoute those without filters. Both refuse unknown fields.
POOL = resource(
    "inference.networking.k8s.io/v1",
    "InferencePool",
    thing(
        "selector targetPorts endpointPickerRef",
        appProtocol={"enum": ["http", "kubernetes.io/h2c"]},
        selector=thing("matchLabels", matchLabels={**LABELS, "maxProperties": 64}),
        targetPorts=items(thing("number", number=PORT), most=8),
        endpointPickerRef=thing(
            "name port",  # the port is required for a Service
            group={"const": ""},
            kind={"const": "Service"},
            name=NAMES,
            port=thing("number", number=PORT),
            failureMode={"enum": ["FailOpen", "FailClose"]},
        ),
    ),
)
MATCH = thing(
    path=thing(type={"enum": ["Exact", "PathPrefix", "RegularExpression"]}, value={"type": "string", "pattern": "^/"}),
    headers=items(thing("name value", type={"enum": ["Exact", "RegularExpression"]}, name=NAMES, value=NAMES)),
    queryParams=items(thing("name value", type={"enum": ["Exact", "RegularExpression"]}, name=NAMES, value=NAMES)),
    method={"enum": "GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH".split()},
)
DURATION = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
ROUTE = resource(
    "gateway.networking.k8s.io/v1",
    "HTTPRoute",
    thing(
        parentRefs=items(thing("name", **REFERENCE, sectionName=NAMES, port=PORT), most=32),
        hostnames=items(NAMES),
        rules=items(
            thing(
                name=NAMES,
                matches=items(MATCH, most=64),
                backendRefs=items(thing("name", **REFERENCE, port=PORT, weight={"type": "integer", "minimum": 0})),
                timeouts=thing(request=DURATION, backendRequest=DURATION),
            )
        ),
    ),
)
SPECS = (
    "queuedRequestsSpec runningRequestsSpec kvUsageSpec loraSpec cacheInfoSpec cacheBlockSizeSpec cacheNumBlocksSpec"
)
LABEL_NAMES = "cacheBlockSizeLabelName cacheNumBlocksLabelName"
ENGINE = thing("name", **{key: {"type": "string"} for key in f"name {SPECS} {LABEL_NAMES}".split()})
PLUGIN = thing("pluginRef", pluginRef=NAMES, weight={"type": "number"})
PICKER = thing(
    "apiVersion kind plugins schedulingProfiles",
    apiVersion={"const": "inference.networking.x-k8s.io/v1alpha1"},
    kind={"const": "EndpointPickerConfig"},
    plugins=items(thing("type", name=NAMES, type=NAMES, parameters={"type": "object"})),
    schedulingProfiles=items(thing("name plugins", name=NAMES, plugins=items(PLUGIN))),
    parser=thing("pluginRef", pluginRef=NAMES),
)
EXTRACTOR = thing(engineLabelKey=NAMES, defaultEngine=NAMES, engineConfigs=items(ENGINE))
SCHEMAS = {"InferencePool": POOL, "HTTPRoute": ROUTE}


def of_gateway(profile: str = "cpu", stack: str = STACK) -> list[dict[str, Any]]:
    return built(stack, profile, gateway=GATEWAY)


def one(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [document for document in of_kind(documents, kind) if document["metadata"]["name"] == name]
    return found


def picker_config() -> dict[str, Any]:
    (path,) = rendered(STACK, gateway=GATEWAY).rglob("picker-config.yaml")
    found: dict[str, Any] = parse_yaml(parse_yaml(path.read_text())["data"]["picker.yaml"])
    return found


@needs("kubectl")
@EACH
def test_every_resource_is_strictly_valid(profile: str) -> None:
    kinds = set()
    for document in of_gateway(profile):
        kinds.add(document["kind"])
        if schema := SCHEMAS.get(document["kind"]):
            Draft202012Validator(schema).validate(document)
        else:
            kubernetes_validate.validate(document, "1.36.0", strict=True)
    assert kinds >= {*SCHEMAS, "Role", "RoleBinding"}


@pytest.mark.parametrize("kind", sorted(SCHEMAS))
def test_the_schemas_refuse_a_field_that_upstream_does_not_have(kind: str) -> None:
    name = {"InferencePool": "inferencepool", "HTTPRoute": "httproute"}[kind]
    (path,) = rendered(STACK, gateway=GATEWAY).rglob(f"{name}.yaml")
    document = parse_yaml(path.read_text())
    Draft202012Validator(SCHEMAS[kind]).validate(document)
    document["spec"]["targetPortNumber"] = 8000  # v1alpha2's
    with pytest.raises(ValidationError, match="targetPortNumber"):
        Draft202012Validator(SCHEMAS[kind]).validate(document)


@needs("kubectl")
def test_the_route_leads_to_the_pool_and_the_pool_to_servers_and_picker() -> None:
    documents = of_gateway()
    (route,), (pool,) = of_kind(documents, "HTTPRoute"), of_kind(documents, "InferencePool")
    (rule,) = route["spec"]["rules"]
    (backend,), (parent,) = rule["backendRefs"], route["spec"]["parentRefs"]
    assert (backend["group"], backend["kind"]) == (pool["apiVersion"].partition("/")[0], pool["kind"])
    assert backend["name"] == pool["metadata"]["name"] and parent["name"] == GATEWAY
    template = one(documents, "Deployment", f"{STACK}-triton")["spec"]["template"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    ports = {port["containerPort"]: port["name"] for port in container["ports"]}
    assert [ports[port["number"]] for port in pool["spec"]["targetPorts"]] == ["http"]
    reference = pool["spec"]["endpointPickerRef"]
    service = one(documents, "Service", reference["name"])
    assert reference["port"]["number"] in [port["port"] for port in service["spec"]["ports"]]
    picker = one(documents, "Deployment", f"{STACK}-picker")["spec"]["template"]
    assert service["spec"]["selector"].items() <= picker["metadata"]["labels"].items()


@needs("kubectl")
def test_no_route_leads_to_tritons_other_apis() -> None:
    (route,) = of_kind(of_gateway(), "HTTPRoute")
    assert [match for rule in route["spec"]["rules"] for match in rule["matches"]] == [
        {"path": {"type": "PathPrefix", "value": "/v2/models"}, "method": "POST"}
    ]


def test_the_picker_reads_metrics_that_our_models_have_on_the_port_that_has_them() -> None:
    config = picker_config()
    Draft202012Validator(PICKER).validate(config)
    (extractor,) = [one["parameters"] for one in config["plugins"] if one["type"] == "core-metrics-extractor"]
    Draft202012Validator(EXTRACTOR).validate(extractor)
    (engine,) = extractor["engineConfigs"]
    assert extractor["defaultEngine"] == engine.pop("name")
    assert {metric.removeprefix("labs_") for metric in engine.values()} <= METRICS.keys()
    (path,) = rendered(STACK, gateway=GATEWAY).rglob("picker.yaml")
    (container,) = parse_yaml(path.read_text())["spec"]["template"]["spec"]["containers"]
    assert "--model-server-metrics-port=8002" in container["args"]
    assert f"--pool-name={STACK}" in container["args"]


def test_every_plugin_that_the_picker_uses_is_defined() -> None:
    config = picker_config()
    used = [one["pluginRef"] for profile in config["schedulingProfiles"] for one in profile["plugins"]]
    assert {*used, config["parser"]["pluginRef"]} <= {one.get("name", one["type"]) for one in config["plugins"]}


@needs("kubectl")
def test_the_picker_is_hardened_probed_and_limited_and_may_only_read() -> None:
    documents = of_gateway()
    pod = dict(pods(documents))[f"{STACK}-picker"]
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert security["runAsNonRoot"] and security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
    for part in ("requests", "limits"):
        assert {"cpu", "memory", "ephemeral-storage"} <= set(container["resources"][part])
    role = one(documents, "Role", f"{STACK}-picker")
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert any(rule["apiGroups"] == [""] and rule["resources"] == ["pods"] for rule in role["rules"])
    (subject,) = one(documents, "RoleBinding", f"{STACK}-picker")["subjects"]
    assert subject["name"] == pod["serviceAccountName"] == f"{STACK}-picker"
    assert one(documents, "ServiceAccount", f"{STACK}-picker")
    budget = one(documents, "PodDisruptionBudget", f"{STACK}-picker")
    assert budget["spec"]["maxUnavailable"] == 1


@needs("kubectl")
def test_the_policies_let_the_gateway_to_servers_and_picker_and_the_picker_to_metrics() -> None:
    documents = of_gateway()
    servers, picker = (one(documents, "NetworkPolicy", f"{STACK}-{name}")["spec"] for name in ("gateway", "picker"))
    gateway = {"gateway.networking.k8s.io/gateway-name": GATEWAY}
    for policy, port in ((servers, 8000), (picker, 9002)):
        rule = policy["ingress"][0]
        assert rule["from"][0]["podSelector"]["matchLabels"] == gateway
        assert [one["port"] for one in rule["ports"]] == [port]
    assert servers["ingress"][1]["from"][0]["podSelector"] == picker["podSelector"]
    assert picker["egress"][0]["to"][0]["podSelector"] == servers["podSelector"]
    assert [one["port"] for one in picker["egress"][0]["ports"]] == [8002]


@needs("kubectl")
@pytest.mark.parametrize(("profile", "engine"), [("cpu", None), ("gpu", "vllm")])
def test_a_pod_of_another_engine_says_whose_metrics_it_has(profile: str, engine: str | None) -> None:
    documents = of_gateway(profile, "inflight-batching")
    labels = one(documents, "Deployment", "inflight-batching-triton")["spec"]["template"]["metadata"]["labels"]
    assert labels.get("inference.networking.k8s.io/engine-type") == engine


@needs("kubectl")
def test_without_a_gateway_nothing_of_it_is_rendered() -> None:
    names = {path.name for path in (FOLDER / "kubernetes/gateway").glob("*.yaml")} - {"kustomization.yaml"}
    assert names and not names & {path.name for path in rendered(STACK).rglob("*.yaml")}
