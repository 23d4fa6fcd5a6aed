"""Envoy's external-processing protocol (envoy.service.ext_proc.v3): the messages and fields that the judge uses.

The published Python packages of Envoy's protocols share their folder with the one that carries Envoy itself, so the few
messages are declared here; numbers and types are the protocol's. What is not declared is skipped when read.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "envoy.service.ext_proc.v3"
METHOD = f"/{PACKAGE}.ExternalProcessor/Process"
#: message: (field, number, type), a ``*`` for repeated; the oneofs of the protocol are of no matter to its encoding.
MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "HeaderValue": (("key", 1, "string"), ("value", 2, "string"), ("raw_value", 3, "bytes")),
    "HeaderMap": (("headers", 1, "HeaderValue*"),),
    "HttpHeaders": (("headers", 1, "HeaderMap"), ("end_of_stream", 3, "bool")),
    "HttpBody": (("body", 1, "bytes"), ("end_of_stream", 2, "bool")),
    "HttpTrailers": (("trailers", 1, "HeaderMap"),),
    "ProcessingRequest": (
        ("request_headers", 2, "HttpHeaders"),
        ("request_body", 4, "HttpBody"),
        ("request_trailers", 6, "HttpTrailers"),
    ),
    "HeaderValueOption": (("header", 1, "HeaderValue"),),
    "HeaderMutation": (("set_headers", 1, "HeaderValueOption*"),),
    "BodyMutation": (("body", 1, "bytes"), ("clear_body", 2, "bool")),
    "CommonResponse": (("body_mutation", 3, "BodyMutation"),),
    "HeadersResponse": (("response", 1, "CommonResponse"),),
    "BodyResponse": (("response", 1, "CommonResponse"),),
    "TrailersResponse": (("header_mutation", 1, "HeaderMutation"),),
    "HttpStatus": (("code", 1, "int32"),),
    "GrpcStatus": (("status", 1, "uint32"),),
    "ImmediateResponse": (
        ("status", 1, "HttpStatus"),
        ("headers", 2, "HeaderMutation"),
        ("body", 3, "bytes"),
        ("grpc_status", 4, "GrpcStatus"),
        ("details", 5, "string"),
    ),
    "ProcessingResponse": (
        ("request_headers", 1, "HeadersResponse"),
        ("request_body", 3, "BodyResponse"),
        ("request_trailers", 5, "TrailersResponse"),
        ("immediate_response", 7, "ImmediateResponse"),
    ),
}


def _declare() -> dict[str, Any]:
    Field = descriptor_pb2.FieldDescriptorProto
    scalars = {
        "string": Field.TYPE_STRING,
        "bytes": Field.TYPE_BYTES,
        "bool": Field.TYPE_BOOL,
        "int32": Field.TYPE_INT32,
        "uint32": Field.TYPE_UINT32,
    }
    file = descriptor_pb2.FileDescriptorProto(name="labguard/ext_proc.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            plain = kind.rstrip("*")
            added = message.field.add(
                name=field,
                number=number,
                type=scalars.get(plain, Field.TYPE_MESSAGE),
                label=Field.LABEL_REPEATED if kind.endswith("*") else Field.LABEL_OPTIONAL,
            )
            if plain not in scalars:
                added.type_name = f".{PACKAGE}.{plain}"
    pool = descriptor_pool.DescriptorPool()  # of its own: nothing else may know these names
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES}


_CLASSES = _declare()
ProcessingRequest, ProcessingResponse = _CLASSES["ProcessingRequest"], _CLASSES["ProcessingResponse"]
