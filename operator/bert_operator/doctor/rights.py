"""What an account may do by the cluster's roles and bindings. Pure.

Only what RBAC grants is seen; another authorizer of the cluster may grant more.
Source: https://kubernetes.io/docs/reference/access-authn-authz/rbac/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bert_operator.doctor.objects import name_of, namespace_of
from bert_operator.doctor.snapshot import Snapshot
from bert_operator.json_paths import Json, dig, entries


class Right(NamedTuple):
    """A verb on a resource or subresource such as ``jobs/status``."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        """Render as ``patch jobs.batch/status``, near to what kubectl auth can-i takes."""
        resource, slash, part = self.resource.partition("/")
        return f"{self.verb} {resource}{f'.{self.group}' if self.group else ''}{slash}{part}"


def find_missing(snapshot: Snapshot, account: str, namespace: str, needed: Iterable[Right], where: str) -> list[Right]:
    """Return the permissions that an account lacks.

    Args:
        snapshot: With roles and bindings.
        account: Name of the ServiceAccount.
        namespace: Where it is.
        needed: Rights to look for.
        where: Namespace in which they are needed; empty: everywhere.
    """
    rules = list(_rules_of(snapshot, account, namespace, where))
    return [right for right in needed if not any(_grants(rule, right) for rule in rules)]


def _rules_of(snapshot: Snapshot, account: str, namespace: str, where: str) -> Iterator[Json]:
    cluster_roles = {name_of(role): role for role in snapshot.items("cluster roles")}
    for binding in snapshot.items("cluster role bindings"):
        if _binds(binding, account, namespace):
            yield from entries(cluster_roles.get(str(dig(binding, "roleRef", "name")), {}), "rules")
    if not where:
        return
    roles = {name_of(role): role for role in snapshot.items("roles") if namespace_of(role) == where}
    for binding in snapshot.items("role bindings"):
        if namespace_of(binding) == where and _binds(binding, account, namespace):
            known = cluster_roles if dig(binding, "roleRef", "kind") == "ClusterRole" else roles
            yield from entries(known.get(str(dig(binding, "roleRef", "name")), {}), "rules")


def _binds(binding: Json, account: str, namespace: str) -> bool:
    groups = {"system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"}
    for subject in entries(binding, "subjects"):
        kind, name = subject.get("kind"), subject.get("name")
        if kind == "ServiceAccount" and (name, subject.get("namespace")) == (account, namespace):
            return True
        if kind == "User" and name == f"system:serviceaccount:{namespace}:{account}":
            return True
        if kind == "Group" and name in groups:
            return True
    return False


def _grants(rule: Json, right: Right) -> bool:
    if rule.get("resourceNames"):
        return False  # single objects, and the needed ones have any name
    resources = rule.get("resources") or []
    part = right.resource.partition("/")[2]
    named = right.resource in resources or "*" in resources or (part != "" and f"*/{part}" in resources)
    return named and _has(rule.get("apiGroups"), right.group) and _has(rule.get("verbs"), right.verb)


def _has(allowed: object, value: str) -> bool:
    return isinstance(allowed, list) and (value in allowed or "*" in allowed)
