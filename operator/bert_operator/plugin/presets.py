"""Manifests from presets: model, optimizer and stages of an example, with the text and the place of whoever submits it.

The presets are made from ``examples/`` by tools/generate.py, so that there is one source for their numbers. What
depends on the cluster (image, ranks per pod, devices, precision) is left to its profile.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import PurePosixPath
from typing import Any, NoReturn

from bert_operator.errors import InputError
from bert_operator.names import API_GROUP, KIND

PRESETS = ("tiny", "large")
"""Sizes whose pretraining an example shows from its first to its last step."""
PRESETS_FILE = "presets.json"
BUILTIN_TEXT = "builtin:python-docs"
_CLAIM = re.compile(r"pvc/(?P<claim>[a-z0-9][a-z0-9.-]*)(?:/(?P<path>.+))?")
_STEP = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9]*)(?:\[(?P<entry>[^\[\]]+)\])?")
_TEXT_MOUNT = "/mnt/text"
_FORM = "pvc/CLAIM or pvc/CLAIM/FOLDER"

Json = dict[str, Any]


def list_presets() -> dict[str, Json]:
    """Return the presets by name: ``from``, the example that they are made from, and ``spec``."""
    text = resources.files("bert_operator.plugin").joinpath(PRESETS_FILE).read_text()
    return dict(json.loads(text))


def make_manifest(
    preset: str,
    *,
    text: str,
    name: str | None = None,
    workers: int | None = None,
    output: str | None = None,
    changes: Sequence[str] = (),
) -> Json:
    """Return the manifest of a job.

    Args:
        preset: ``tiny`` or ``large``.
        text: ``pvc/CLAIM/FOLDER``, or ``builtin:python-docs``.
        name: Of the job; None: ``bert-`` and the preset.
        workers: Pods that train; None: one.
        output: ``pvc/CLAIM/FOLDER`` for results; None: the profile's volume, in a folder of the job's name.
        changes: ``path=value`` each, as ``stages[phase1].pretrain.learningRate=1e-4``; values are JSON, else text.

    Raises:
        InputError: Something of it cannot be.
    """
    if preset not in PRESETS:
        raise InputError(f"--preset: got {preset!r}; allowed: {', '.join(PRESETS)}")
    if workers is not None and workers < 1:
        raise InputError(f"--workers: got {workers}; allowed: 1 or more")
    if name == "":
        raise InputError("--name: got an empty one; allowed: lower-case letters, digits and dashes between them")
    name = name or f"bert-{preset}"
    spec = list_presets()[preset]["spec"]
    spec["output"] = {"path": name, "ifExists": "Resume"}
    if workers is not None:
        spec["workers"] = workers
    claim, folder = (None, None) if output is None else _claim_of(output, "--output")
    if claim is not None:
        spec["output"] |= {"path": folder or name, "volume": {"persistentVolumeClaim": {"claimName": claim}}}
    (prepare,) = [stage["prepare"] for stage in spec["stages"] if "prepare" in stage]
    if text == BUILTIN_TEXT:
        prepare["text"] = text
    else:
        of_text, path = _claim_of(text, "--text", f"{_FORM}, or {BUILTIN_TEXT}")
        if of_text == claim and _is_within(spec["output"]["path"], path or ""):
            raise InputError(
                f"--text: got {text}, and results go into it, to {spec['output']['path']} of the same claim; allowed: "
                f"a folder beside that",
                hint="otherwise the job would read what it has written as text",
            )
        source = {"persistentVolumeClaim": {"claimName": of_text}, "mountPath": _TEXT_MOUNT}
        spec["volumes"] = [{"name": "text", "source": source}]
        prepare["text"] = _TEXT_MOUNT if path is None else f"{_TEXT_MOUNT}/{path}"
    for change in changes:
        _change(spec, change)
    if not isinstance(spec.get("output"), dict):
        raise InputError(f"--set: got {spec.get('output')!r} for output; allowed: a section with a path")
    return {"apiVersion": f"{API_GROUP}/v1alpha1", "kind": KIND, "metadata": {"name": name}, "spec": spec}


def _is_within(inner: str, outer: str) -> bool:
    """Tell whether a folder of a claim is another one, or lies in it."""
    return PurePosixPath(posixpath.normpath(f"/{inner}")).is_relative_to(posixpath.normpath(f"/{outer}"))


def _claim_of(text: str, option: str, allowed: str = _FORM) -> tuple[str, str | None]:
    found = _CLAIM.fullmatch(text)
    if found is None:
        raise InputError(f"{option}: got {text!r}; allowed: {allowed}")
    return found["claim"], found["path"]


def _change(spec: Json, change: str) -> None:
    path, sign, text = change.partition("=")
    steps = [_STEP.fullmatch(step) for step in path.removeprefix("spec.").split(".")]
    if not sign or None in steps:
        raise InputError(
            f"--set: got {change!r}; allowed: PATH=VALUE below spec, such as precision=bf16 or "
            f"stages[phase1].pretrain.learningRate=1e-4"
        )
    *before, last = [(step["name"], step["entry"]) for step in steps if step is not None]
    place: Any = spec
    for name, entry in before:
        place = _entry(place.setdefault(name, {}), entry, change) if entry else place.setdefault(name, {})
        if not isinstance(place, dict):
            raise InputError(f"--set: got {change!r}; {name} is no section")
    name, entry = last
    if entry is not None:
        raise InputError(f"--set: got {change!r}; allowed: a field at the end of the path, not an entry of a list")
    place[name] = _value(text)


def _entry(entries: Any, wanted: str, change: str) -> Json:
    found = entries if isinstance(entries, list) else []
    for number, item in enumerate(found):
        if isinstance(item, dict) and wanted in (item.get("name"), str(number)):
            return item
    names = ", ".join(str(item.get("name", number)) for number, item in enumerate(found) if isinstance(item, dict))
    raise InputError(f"--set: got {change!r}; there is no entry {wanted}; allowed: {names or 'none, it is no list'}")


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except (RecursionError, ValueError):
        return text


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")
