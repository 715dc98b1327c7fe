"""Jobs that a walk over the spec applies, drawn by chance: small ones, ones with many fields, and any documents at all.

``job_documents`` draws whatever may or may not be valid. Most of what people apply is valid: what is added here stays
only if the rules take it, so that a document may have fields of many sections at once. Nothing is judged by that.
"""

from __future__ import annotations

import copy
import random
from typing import Any

from bert_operator.api.parsing.validation import parse_job
from bert_operator.errors import InvalidJob
from cluster_jobs import job_document
from job_documents import add_fields, as_kubectl_sends_it, draw_document
from rule_cases import RULE_CASES
from sample_job import sample_document

Json = dict[str, Any]

MAX_WORKERS = 3
"""Each is a pod of the API server's."""
MANY_FIELDS = 20
TRIES = 4
_CASES = sorted(RULE_CASES)


def draw_job(chance: random.Random, name: str, fields: int) -> Json:
    """Return a job that runs in a cluster, with so many further fields; one in eight is any job at all."""
    if chance.random() < 0.125:
        document = draw_document(chance.getrandbits(24))
        document["metadata"] = {"name": name}
        return as_applied(document)
    policy = {"applicationRetries": chance.choice((0, 1, 3)), "infrastructureRetries": chance.choice((0, 1, 3))}
    policy |= chance.choice(({}, {}, {}, {"suspend": True}, {"ttlSecondsAfterFinished": 1}))
    own: Json = {"runPolicy": policy, "workers": chance.choice((1, 1, 2))}
    if fields < MANY_FIELDS:
        document = job_document(name, prepare=chance.random() < 0.5, **own)
    else:
        document = job_document(name, prepare=True, stages=sample_document()["spec"]["stages"], **own)
        for case in chance.sample(_CASES, 5):
            document = _kept(document, RULE_CASES[case].keeps)
    document = grow(chance, document, fields)
    if chance.random() < 0.2:
        document["spec"]["profile"] = chance.choice(("plain", "plain", "absent"))
        document["spec"].pop("image", None)
    return as_applied(document)


def grow(chance: random.Random, document: Json, fields: int) -> Json:
    """Return a document with so many further fields, of which almost none breaks a rule."""
    for _ in range(fields):
        anything = chance.random() < 0.03
        for _ in range(TRIES):
            grown = copy.deepcopy(document)
            add_fields(chance, grown, 1)
            if anything or _is_valid(grown):
                document = grown
                break
    return document


def as_applied(document: Json) -> Json:
    """Return a job as kubectl sends it, with no more workers than can be looked after."""
    spec = as_kubectl_sends_it(document.get("spec"))
    if isinstance(spec, dict) and isinstance(spec.get("workers"), int):
        spec["workers"] = min(spec["workers"], MAX_WORKERS)
    return {**document, "spec": spec}


def _kept(document: Json, change: Any) -> Json:
    changed = copy.deepcopy(document)
    try:
        change(changed["spec"])
    except (IndexError, KeyError, TypeError):  # an earlier change has taken away what this one is about
        return document
    return changed if _is_valid(changed) else document


def _is_valid(document: Json) -> bool:
    try:
        parse_job(as_applied(document))
    except InvalidJob:
        return False
    return True
