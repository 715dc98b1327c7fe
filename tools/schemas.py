"""Print a folder with JSON schemas, as kubeconform reads them, for everything that deploy/ and charts/ may hold.

One folder per release of Kubernetes, made from its OpenAPI document, and one for custom resources, made from their
definitions: ours as the code has it, those of mpi-operator, Kueue and prometheus-operator as released. All are strict:
a field that is not in the schema is an error, as it is under the API server's strict field validation. What CEL says
is not checked. Files come from tools/control_plane/modules.sh; results are kept beside them, keyed by their sources.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
MODULES = ROOT / "tools/control_plane/modules.sh"
OURS = ROOT / "deploy/kustomize/base/crd.yaml"
CUSTOM = "custom"
GROUPS = "x-kubernetes-group-version-kind"

Json = dict[str, Any]

# What OpenAPI 2 calls a string may also be a number in a manifest.
LOOSE: dict[str, Json] = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
}


def find_sources(modules: Path) -> tuple[dict[str, Path], list[Path]]:
    """Return the OpenAPI document of every release, by version without ``v``, and the files with definitions."""
    names = [line.split() for line in MODULES.with_suffix(".txt").read_text().splitlines() if not line.startswith("#")]
    releases, definitions = {}, [OURS]
    for module, version, _, *files in names:
        paths = [modules / f"{module}@{version}" / file for file in files]
        if module == "k8s.io/kubernetes":
            releases[version.removeprefix("v")] = paths[0]
        else:
            definitions += paths
    return releases, definitions


def file_name(group: str, version: str, kind: str) -> str:
    """Return what kubeconform asks for: ``deployment-apps-v1.json``, and ``pod-v1.json`` in the core group."""
    short = group.split(".")[0]
    return "-".join(part for part in (kind.lower(), short, version) if part) + ".json"


def release_schemas(document: Json) -> Iterator[tuple[str, Json]]:
    """Yield file name and schema of every kind of a release. document: its swagger.json."""
    strict = {name: LOOSE.get(name) or tighten(schema) for name, schema in document["definitions"].items()}
    for name, schema in document["definitions"].items():
        kinds = schema.get(GROUPS, [])
        # Some, such as DeleteOptions, are of every group; manifests hold none of them.
        if len(kinds) != 1 or "properties" not in schema:
            continue
        reached = reachable(name, strict)
        yield (
            file_name(kinds[0]["group"], kinds[0]["version"], kinds[0]["kind"]),
            {"$ref": f"#/definitions/{name}", "definitions": {part: strict[part] for part in sorted(reached)}},
        )


def reachable(name: str, definitions: dict[str, Json]) -> set[str]:
    """Return the names of all definitions that one is made of."""
    found, left = set(), [name]
    while left:
        current = left.pop()
        if current not in found:
            found.add(current)
            left += references(definitions[current])
    return found


def references(schema: Any) -> Iterator[str]:
    """Yield the names that a schema refers to."""
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference.removeprefix("#/definitions/")
        for value in schema.values():
            yield from references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from references(value)


def custom_schemas(path: Path) -> Iterator[tuple[str, Json]]:
    """Yield file name and schema of every served version of the definitions in a file."""
    for document in yaml.load_all(path.read_text(), yaml.CSafeLoader):
        if document is None or document["kind"] != "CustomResourceDefinition":
            continue
        spec = document["spec"]
        for version in spec["versions"]:
            if not version["served"]:
                continue
            schema = tighten(version["schema"]["openAPIV3Schema"])
            # Always there, though definitions need not name them.
            schema["properties"] |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
            schema["properties"]["metadata"] = {"type": "object"}
            yield file_name(spec["group"], version["name"], spec["names"]["kind"]), schema


def tighten(schema: Json) -> Json:
    """Return the schema in plain JSON Schema, with fields that it does not name forbidden."""
    result = {key: value for key, value in schema.items() if not key.startswith("x-") and key != "format"}
    if schema.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
        result |= {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    for key in ("properties", "patternProperties"):
        if key in schema:
            result[key] = {name: tighten(value) for name, value in schema[key].items()}
    for key in ("items", "additionalProperties", "not"):
        if isinstance(schema.get(key), dict):
            result[key] = tighten(schema[key])
    for key in ("allOf", "anyOf", "oneOf"):
        if key in schema:
            # Parts add conditions to the whole, which alone knows all fields.
            result[key] = [loosen(part) for part in schema[key]]
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if "properties" in schema and not is_open:
        result["additionalProperties"] = False
    if schema.get("nullable") and isinstance(result.get("type"), str):
        result["type"] = [result["type"], "null"]
        if "enum" in result:
            result["enum"] = [*result["enum"], None]
    result.pop("nullable", None)
    return result


def loosen(schema: Json) -> Json:
    """Return a part of a combination: plain JSON Schema, without forbidding fields."""
    return {key: value for key, value in schema.items() if not key.startswith("x-") and key != "format"}


def write(folder: Path, schemas: Iterator[tuple[str, Json]]) -> None:
    """Write every schema into a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, schema in schemas:
        (folder / name).write_text(json.dumps(schema))


def main() -> int:
    """Make what is not there yet and print where it is."""
    answer = subprocess.run([str(MODULES)], stdout=subprocess.PIPE, text=True)
    if answer.returncode:
        return answer.returncode
    modules = Path(answer.stdout.strip())
    releases, definitions = find_sources(modules)
    key = hashlib.sha256(b"".join(path.read_bytes() for path in (Path(__file__), *definitions)))
    key.update(" ".join(releases).encode())
    target = modules.parent / f"schemas-{key.hexdigest()[:16]}"
    if not target.exists():
        part = Path(tempfile.mkdtemp(prefix="schemas.", dir=modules.parent))
        for version, path in releases.items():
            write(part / version, release_schemas(json.loads(path.read_text())))
        for path in definitions:
            write(part / CUSTOM, custom_schemas(path))
        try:
            part.rename(target)
        except OSError:  # somebody else was faster
            shutil.rmtree(part)
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
