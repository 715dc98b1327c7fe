"""What an administrator lets jobs ask of a cluster, for all namespaces and for single ones. Part of the settings."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from bert_operator.api.schema.cluster import SERVER_PATTERN

_CONFIG = ConfigDict(
    extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=True, use_attribute_docstrings=True
)

_Text = Annotated[str, Field(min_length=1, max_length=512)]
# As jobs may write them, or the entry would match nothing: colons in an address (IPv6) and before the slash alone, and
# no ".." in a path. Without look-ahead, which Helm's expressions lack.
_SERVER = SERVER_PATTERN.removeprefix("^(").removesuffix(")$")
_PATH = r"(/([^./][^/]*|\.([^./][^/]*)?|\.\.[^/]+)?)+"
_EXPORT = rf"^({_SERVER})(:{_PATH})?$"


def _is_export(text: str) -> str:
    if not re.fullmatch(_EXPORT, text):
        raise ValueError("allowed: SERVER, or SERVER:/FOLDER without '..'; next: write it as jobs do, as in nas:/bert")
    return text


_Export = Annotated[str, Field(max_length=1300, json_schema_extra={"pattern": _EXPORT}), AfterValidator(_is_export)]
Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]


_ANY = "any"


def _unbounded(value: Any) -> Any:
    return None if value == _ANY else value


def _or_any(bound: Any) -> BeforeValidator:
    # A word, and not null, which Helm and all that merges would delete: the bound of all namespaces would hold again.
    return BeforeValidator(_unbounded, json_schema_input_type=bound | Literal["any"])


_PodSeconds = Annotated[int, Field(ge=1, le=86_400)]
_Whole = Annotated[int, Field(ge=0)]
_Names = Annotated[tuple[_Text, ...] | None, _or_any(tuple[_Text, ...])]
_Exports = Annotated[tuple[_Export, ...] | None, _or_any(tuple[_Export, ...])]
_Seconds = Annotated[_PodSeconds | None, _or_any(_PodSeconds)]
_Count = Annotated[_Whole | None, _or_any(_Whole)]


class Bounds(BaseModel):
    """Limits for jobs of a namespace; a field that is left out, or ``any``, is unlimited.

    An empty list allows nothing. ``priority_classes`` is empty where it is left out: a pod that finds no room evicts
    others of a lower priority, another tenant's job as well as the operator. So are the lists of what others act upon:
    ServiceAccounts, labels and annotations of pods, queues.

    What profiles and trainerImage say needs no entry: an administrator wrote it.
    """

    model_config = _CONFIG

    images: _Names = None
    """Images that jobs may run or mount, each as a registry, a folder of one, a repository, or a whole name. It stands
    for all below it: ``docker.io/foo`` for docker.io/foo:1 and docker.io/foo/bar, and not for docker.io/foobar/x.
    Compared as written: ``foo/bar`` is another name than docker.io/foo/bar."""
    nfs_exports: _Exports = None
    """NFS that jobs may mount without a claim, each as a server (``nas.example``) or a folder of one and all below it
    (``nas.example:/bert``). A path with ``..`` is below no folder. Compared as written: an address is another server
    than its name. With NFSv4 the mounting node follows symbolic links on the way, so a folder is a border only where
    jobs can make no links below it, or the server exports nothing else to the nodes."""
    extended_resources: _Names = None
    """Resources of device plugins that jobs may name in ``accelerator`` and ``rdma``. An accelerator without a name is
    ``nvidia.com/gpu``."""
    resource_claims: _Names = None
    """ResourceClaimTemplates and ResourceClaims that jobs may name; none with gpusPerNamespace."""
    priority_classes: _Names = ()
    """PriorityClasses that jobs may name. Left out: none."""
    workload_priority_classes: _Names = None
    """Kueue WorkloadPriorityClasses that jobs may name. Jobs without one are ranked by their PriorityClass."""
    service_accounts: _Names = ()
    """ServiceAccounts that jobs may name. Left out: none."""
    pod_labels: _Names = ()
    """Keys of labels that jobs may put on their pods (podMetadata). Left out: none."""
    pod_annotations: _Names = ()
    """Keys of annotations that jobs may put on their pods. Left out: none."""
    scheduling_queues: _Names = ()
    """Queues of Volcano that jobs may name in scheduling.schedulingPolicy. Left out: none."""
    scheduler_names: _Names = None
    """Schedulers that jobs may name."""
    runtime_classes: _Names = None
    """RuntimeClasses that jobs may name."""
    tolerations: _Names = None
    """Keys of taints that jobs may tolerate. A toleration without a key tolerates every taint, and is refused."""
    node_labels: _Names = None
    """Node labels that jobs may select by, in nodeSelector and nodeAffinity; ``metadata.name`` for nodes by name."""
    affinity_namespaces: _Names = None
    """Other namespaces whose pods podAffinity and podAntiAffinity may name; with podAntiAffinity a job keeps pods of
    those namespaces off its nodes."""
    stop_grace_seconds: _Seconds = None
    """Maximum runPolicy.stopGraceSeconds."""
    ranks_per_namespace: _Count = None
    """Maximum ranks of all concurrent attempts of a namespace. Jobs beyond it wait; one that alone exceeds it is
    invalid."""
    gpus_per_namespace: _Count = None
    """Maximum accelerators of all concurrent attempts of a namespace, of any resource but the network devices of
    profiles. Jobs may then use resourceClaims only from a profile, since the number of devices in a claim is unknown.
    Each counts as one."""


class Limits(Bounds):
    """Limits for all namespaces, with overrides for some."""

    namespaces: dict[Namespace, Bounds] = {}
    """Overrides by namespace: a field given there replaces the general one; ``any`` removes the limit."""

    def of(self, namespace: str) -> Bounds:
        """Return the limits of a namespace. Its own pods are always exempt from ``affinity_namespaces``."""
        bounds = self.bounds_of(namespace)
        foreign = bounds.affinity_namespaces
        return bounds if foreign is None else bounds.model_copy(update={"affinity_namespaces": (namespace, *foreign)})

    def bounds_of(self, namespace: str) -> Bounds:
        """Return what the settings say for a namespace: its overrides, and for the rest what holds for all."""
        own = self.namespaces.get(namespace)
        if own is None:
            return self
        return self.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})
