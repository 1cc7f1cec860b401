"""Servers and clients of gRPC services, made from their descriptors: generated code has only the messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass


def add_service(server: grpc.aio.Server, service: ServiceDescriptor, servicer: object, name: str = "") -> None:
    """Serve the methods that `servicer` has under their names; clients get UNIMPLEMENTED for all others.

    `name` is that of another version of the service, with the same messages.
    """
    methods = {each.name: _handler(each, servicer) for each in service.methods if hasattr(servicer, each.name)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name or service.full_name, methods),))


def _handler(method: MethodDescriptor, servicer: object) -> grpc.RpcMethodHandler[Any, Any]:
    handler = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    return handler(getattr(servicer, method.name), request.FromString, response.SerializeToString)


def client(channel: grpc.aio.Channel, service: ServiceDescriptor) -> SimpleNamespace:
    """Return an object that has each method of the service, to be called with a request."""
    methods = SimpleNamespace()
    for method in service.methods:
        call = channel.unary_stream if method.server_streaming else channel.unary_unary
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        path = f"/{service.full_name}/{method.name}"
        setattr(methods, method.name, call(path, request.SerializeToString, response.FromString))
    return methods
