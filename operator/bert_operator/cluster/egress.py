"""Egress rules of a NetworkPolicy, as Kubernetes has them, so that a mistake is found where the settings are read.

Source: NetworkPolicyEgressRule of networking.k8s.io/v1, without named ports, whose numbers are another pod's.
"""

from __future__ import annotations

import json
from ipaddress import ip_network
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, model_validator

from bert_job.section import Section
from bert_operator.api.schema.scheduling import LabelSelector


def _is_network(text: str) -> str:
    ip_network(text)  # its ValueError says what is wrong, such as bits of a host
    return text


Network = Annotated[str, AfterValidator(_is_network)]
Port = Annotated[int, Field(ge=1, le=65535)]


class IpBlock(Section):
    """An address range (CIDR) with exceptions."""

    cidr: Network
    """Such as 10.0.0.0/8."""
    except_: Annotated[list[Network], Field(alias="except")] = []
    """Ranges in it that are left out."""


class Peer(Section):
    """A destination: an address range or selected pods."""

    ip_block: IpBlock | None = None
    """Addresses."""
    namespace_selector: LabelSelector | None = None
    """Pods of these namespaces; of the job's own where it is missing."""
    pod_selector: LabelSelector | None = None
    """Of those the ones with these labels; all where it is missing."""

    @model_validator(mode="after")
    def _is_one_kind(self) -> Peer:
        by_label = self.namespace_selector is not None or self.pod_selector is not None
        if by_label == (self.ip_block is not None):
            raise ValueError("name either ipBlock, or namespaceSelector and podSelector or one of them")
        return self


class EgressPort(Section):
    """A port or a range of ports."""

    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"
    """Of the port."""
    port: Port | None = None
    """Empty: all."""
    end_port: Port | None = None
    """Last port of a range that begins at ``port``."""

    @model_validator(mode="after")
    def _is_range(self) -> EgressPort:
        if self.end_port is not None and (self.port is None or self.end_port < self.port):
            raise ValueError(f"endPort: got {self.end_port}; allowed: a port from `port` on, which is then needed")
        return self


class EgressRule(Section):
    """One egress rule: destinations and ports."""

    to: Annotated[list[Peer], Field(min_length=1)] | None = None
    """Any of these. Empty: everywhere."""
    ports: Annotated[list[EgressPort], Field(min_length=1)] | None = None
    """At any of these. Empty: at all."""


_RULES = TypeAdapter(tuple[EgressRule, ...])


def read_egress(rules: Any) -> tuple[dict[str, Any], ...]:
    """Parse egress rules, with the API server's defaults. Raises ValueError, which names each mistake."""
    try:
        # As JSON: sections take values of its types only, and YAML knows more, such as dates.
        read = _RULES.validate_json(json.dumps(rules, default=str))
    except ValidationError as error:
        found = (f"{'.'.join(map(str, item['loc']))}: got {item['input']!r}; {item['msg']}" for item in error.errors())
        raise ValueError("; ".join(found)) from error
    return tuple(_without_empty(rule.model_dump(mode="json", by_alias=True, exclude_none=True)) for rule in read)


def _without_empty(value: Any) -> Any:
    """Drop what says nothing; an empty selector stays, since it selects everything."""
    if isinstance(value, dict):
        kept = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item or not (item == [] or key == "matchLabels")}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value
