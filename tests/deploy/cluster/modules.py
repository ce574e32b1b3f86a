"""Schemas that live in Go modules, fetched by `go` and checked against its sum database."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

KUBERAY = "github.com/ray-project/kuberay/ray-operator@v1.5.1"
COMPOSE = "github.com/compose-spec/compose-go/v2@v2.9.0"


def module_folder(module: str) -> Path:
    """Where the files of `path@version` lie."""
    go = shutil.which("go")
    assert go, "no Go: https://go.dev/dl"
    done = subprocess.run([go, "mod", "download", "-json", module], capture_output=True, text=True, cwd="/")
    told = json.loads(done.stdout)
    assert "Dir" in told, told
    return Path(told["Dir"])


def strict(schema: Any) -> Any:
    """The schema of a custom resource, as `kubectl apply --validate=strict` reads it: an unknown name is an error."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    open_ended = {"additionalProperties", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"}
    if isinstance(closed.get("properties"), dict) and closed.get("type") == "object" and not open_ended & closed.keys():
        closed["additionalProperties"] = False
    return closed
