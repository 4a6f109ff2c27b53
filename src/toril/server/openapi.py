"""The description of the API, made from its routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import toril
from toril.server.routes import RouteGroup

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {"type": "string", "description": "What is wrong."},
        "field": {"type": "string", "description": "The parameter that is wrong, where one is."},
    },
}

SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "api-key"},
}


def describe(groups: Sequence[RouteGroup]) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {"Error": ERROR}
    for group in groups:
        schemas |= group.schemas
        for endpoint in group.endpoints:
            operation = {"tags": [group.name], **endpoint.operation}
            paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Toril",
            "version": toril.__version__,
            "description": "Spans in, trace summaries out.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": group.name} for group in groups if group.endpoints],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": SECURITY},
    }
