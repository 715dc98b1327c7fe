"""The API server's measure of a whole job is ours, to the byte."""

from __future__ import annotations

from bert_operator.api.rules.size_bound import MAX_BYTES, spec_size
from cluster_api import Api
from sample_job import Document, sample_document

NAMESPACE = "default"


def of_size(total: int) -> Document:
    """A job of exactly so many measured bytes, with something in every sort of list and map."""

    def change(spec: Document) -> None:
        term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"example.com/a": "b"}}, "namespaces": ["x"]}
        affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        spec["scheduling"] = {"nodeSelector": {"a/b": "c", "d": ""}, "affinity": affinity}
        spec["envFrom"] = [{"secret": "s", "prefix": "P"}]
        spec["env"] = [{"name": f"N{number}", "value": ""} for number in range(100)]

    job = sample_document(change)
    for variable in job["spec"]["env"]:
        variable["value"] = "é" * min(2048, max(0, total - spec_size(job["spec"])) // 2)
    job["spec"]["output"]["path"] += "x" * (total - spec_size(job["spec"]))
    assert spec_size(job["spec"]) == total
    return job


def test_the_largest_is_taken_and_a_byte_more_is_refused(api: Api) -> None:
    assert api.create(of_size(MAX_BYTES), NAMESPACE, dry_run=True).status == 201
    refused = api.create(of_size(MAX_BYTES + 1), NAMESPACE, dry_run=True)
    assert refused.status == 422
    assert "at most 256 KiB as a whole" in refused.message
