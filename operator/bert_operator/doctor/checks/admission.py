"""Webhooks that refuse everything because nobody answers: policy engines, Kueue, sidecar injectors."""

from __future__ import annotations

from collections.abc import Iterator

from bert_operator.doctor.finding import Finding, error
from bert_operator.doctor.objects import name_of, some
from bert_operator.doctor.snapshot import Snapshot
from bert_operator.json_paths import Json, entries, mapping

OUR_REQUESTS = {
    ("", "pods"),
    ("", "configmaps"),
    ("batch", "jobs"),
    ("kubeflow.org", "mpijobs"),
    ("networking.k8s.io", "networkpolicies"),
    ("bert-operator.dev", "bertpretrainjobs"),
}
"""What is created for a job, and the job."""
KINDS = {"validating webhooks": "ValidatingWebhookConfiguration", "mutating webhooks": "MutatingWebhookConfiguration"}


def closed_services(snapshot: Snapshot) -> Iterator[tuple[str, Json, str]]:
    """Yield what can stop a job: kind and name of a configuration, its webhook, the Service as namespace/name."""
    for source, kind in KINDS.items():
        for configuration in snapshot.items(source):
            for webhook in entries(configuration, "webhooks"):
                service = mapping(webhook, "clientConfig", "service")
                if service and webhook.get("failurePolicy", "Fail") == "Fail" and _sees_jobs(webhook):
                    place = f"{service.get('namespace')}/{service.get('name')}"
                    yield f"{kind} {name_of(configuration)}", webhook, place


def _sees_jobs(webhook: Json) -> bool:
    for rule in entries(webhook, "rules"):
        operations = rule.get("operations") or []
        if not ({"CREATE", "*"} & set(operations)):
            continue
        groups, resources = rule.get("apiGroups") or [], rule.get("resources") or []
        for group, resource in OUR_REQUESTS:
            if ({group, "*"} & set(groups)) and ({resource, "*", "*/*"} & set(resources)):
                return True
    return False


def check_webhooks(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that the webhooks which must admit pods and jobs have endpoints."""
    labels = {name_of(item): mapping(item, "metadata", "labels") for item in snapshot.items("namespaces")}
    with_jobs = {place: labels[place] for place in snapshot.job_namespaces() if place in labels}
    for configuration, webhook, service in closed_services(snapshot):
        if snapshot.endpoints.get(service, 0) > 0:
            continue
        selector = mapping(webhook, "namespaceSelector")
        seen = [place for place, own in with_jobs.items() if selects(selector, own)]
        if with_jobs and not seen:
            continue  # other people's
        where = f" in {some(seen)}" if seen else ""
        yield error(
            f"{configuration}, webhook {webhook.get('name')}: fails closed, and its Service {service} has no ready "
            "endpoint",
            f"the API server refuses new jobs and pods{where} while it cannot be asked",
            f"kubectl -n {service.partition('/')[0]} get pods, and repair it; only where it is no longer wanted: "
            f"kubectl delete {configuration.split()[0].lower()} {configuration.split()[1]}",
        )


def selects(selector: Json, labels: Json) -> bool:
    """Return whether a label selector matches these labels; an empty one matches all."""
    if any(labels.get(key) != value for key, value in mapping(selector, "matchLabels").items()):
        return False
    for term in entries(selector, "matchExpressions"):
        value, values = labels.get(str(term.get("key"))), term.get("values") or []
        is_there = value is not None
        answers = {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": is_there,
            "DoesNotExist": not is_there,
        }
        if not answers.get(str(term.get("operator")), True):
            return False
    return True
