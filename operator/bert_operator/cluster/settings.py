"""The operator's own configuration: what cluster administrators decide, and not those who submit jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from bert_job.foreign_text import printable
from bert_operator.api.parsing.profiles import find_profile_problems
from bert_operator.cluster.egress import read_egress
from bert_operator.cluster.limits import Limits, Namespace
from bert_operator.errors import SettingsError
from bert_operator.render.images import PLACEHOLDER_REGISTRY
from bert_operator.spec_documents import without_nulls

# A name that resolves nowhere, now or ever (RFC 6761, section 6.4): a registry that nobody of this project owns could
# otherwise be somebody else's tomorrow, with an image of theirs. Whoever installs the operator names their own.
DEFAULT_TRAINER_IMAGE = f"{PLACEHOLDER_REGISTRY}/bert-operator/trainer:0.2.0"

_KEY = "settings.yaml"
"""Of the ConfigMap; the Deployment in deploy/ and charts/ names it."""

# A ConfigMap has 1 MiB at most; printed, it may hold the same once more as what was last applied.
_MAX_BYTES = 4 * 1_048_576
# Profiles take a few hundred values. Nine lines of aliases can stand for a billion.
_MAX_VALUES = 100_000
# Reading takes several frames of Python's stack, which has 1,000, for each level.
_MAX_DEPTH = 50


class PriorityBoost(BaseModel):
    """How Kueue is told to spare running jobs with unsaved work (``state.priority_boost``)."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=True)

    after_seconds: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1, max_length=9)]
    """Ages of unsaved work in seconds, ascending: each one that is reached adds 1 to the priority."""

    @field_validator("after_seconds")
    @classmethod
    def _ascending(cls, ages_s: tuple[float, ...]) -> tuple[float, ...]:
        if list(ages_s) != sorted(set(ages_s)):
            raise ValueError(f"got {list(ages_s)}; allowed: ascending, each once; next: sort them")
        return ages_s


class Settings(BaseModel):
    """The operator's settings: a YAML file, mounted from a ConfigMap. Every field is optional."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=True, use_attribute_docstrings=True
    )

    trainer_image: Annotated[str, Field(min_length=1)] = DEFAULT_TRAINER_IMAGE
    """Default image of jobs. Default: a placeholder that no registry has, so that no stranger's image is ever run."""
    namespaces: tuple[str, ...] = ()
    """Namespaces to watch. Empty: all."""
    allow_host_path: bool = False
    """Whether jobs may use hostPath volumes. Default: no, since these bypass every other limit."""
    allow_host_network: bool = False
    """Whether jobs may set network.hostNetwork. Default: no; profiles always may."""
    allow_lock_memory: bool = False
    """Whether jobs may set network.lockMemory. Default: no; profiles always may."""
    job_network_policy: bool = False
    """Restrict the pods of each job by a NetworkPolicy: ingress from the job's pods and Prometheus, egress to the job's
    pods, DNS, the proxies of profiles and ``jobEgress``. Default: no; the shipped manifests set yes. Needs a network
    plugin that enforces NetworkPolicies."""
    monitoring_namespace: str = "monitoring"
    """Namespace of the Prometheus that may reach ``logging.prometheusPort`` of jobs under such a policy."""
    job_egress: tuple[dict[str, Any], ...] = ()
    """Further egress of all jobs, such as to the experiment tracker of your own programs: egress rules of a Kubernetes
    NetworkPolicy (``to`` and ``ports``)."""
    profiles: dict[str, dict[str, Any]] = {}
    """Profiles by name: fields of a job's spec that belong to the cluster; the job's own fields take precedence."""
    default_profile: str | None = None
    """Profile of jobs that do not name one. Empty: none."""
    profile_namespaces: dict[str, tuple[Namespace, ...]] = {}
    """Namespaces in which a profile may be used, by its name; what it grants is granted only there. A profile without
    an entry may be used in all. Where the default profile may not be used, jobs that name none get none."""
    priority_boost: PriorityBoost | None = None
    """Tell Kueue which running jobs have unsaved work: ``afterSeconds``, up to nine ascending ages, each of which adds
    1 to a job's priority until its next checkpoint. Priority classes must lie farther apart than the number of ages.
    Default: no. Needs Kueue's feature gate PriorityBoost (alpha) and permission to patch Workloads
    (``components/priority-boost``)."""
    limits: Limits = Limits()
    """Limits on what jobs may request. Default: whatever the cluster allows, but no PriorityClass."""
    lease: str | None = None
    """Name of the Lease in the operator's own namespace for leader election: the leader reconciles, other replicas
    stand by. Default: none, for a single replica. The shipped Deployments with two replicas name it by ``--lease``
    instead."""
    workers: Annotated[int, Field(ge=1, le=64)] = 8
    """Number of jobs reconciled concurrently."""
    sweep_seconds: Annotated[float, Field(gt=0)] = 60.0
    """Seconds between two resyncs, which compare the cache with a fresh list of jobs."""
    watch_silence_seconds: Annotated[float, Field(gt=0)] = 75.0
    """Seconds of silence after which a watch counts as dead and is reopened. Default: a little more than the minute
    between two bookmarks of the API server."""
    max_watch_lag_seconds: Annotated[float, Field(gt=0)] = 120.0
    """Maximum watch lag in seconds before /readyz fails."""
    max_wait_seconds: Annotated[float, Field(gt=0)] = 300.0
    """Maximum seconds that a job waits in the queue, or is being reconciled, before /readyz fails."""
    http_port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """TCP port of /metrics, /healthz and /readyz. 0: any free port."""
    http_host: str = ""
    """Address to listen on. Empty: all IPv4 and IPv6 addresses."""

    @field_validator("job_egress", mode="before")
    @classmethod
    def _as_kubernetes_has_them(cls, rules: Any) -> Any:
        """Check the rules here: the API server would refuse the policy of every single job."""
        return read_egress(rules)

    def seen_from(self, namespace: str) -> Settings:
        """Return the settings with only those profiles that a namespace may use."""
        hidden = {name for name, allowed in self.profile_namespaces.items() if namespace not in allowed}
        if not hidden:
            return self
        profiles = {name: profile for name, profile in self.profiles.items() if name not in hidden}
        default = None if self.default_profile in hidden else self.default_profile
        return self.model_copy(update={"profiles": profiles, "default_profile": default})

    def list_proxies(self) -> frozenset[str]:
        """Return the addresses that profiles have for proxies: those that jobs under a NetworkPolicy may reach."""
        found = (profile.get("proxy", {}).get(name) for profile in self.profiles.values() for name in ("http", "https"))
        return frozenset(address for address in found if address)


def _read_text(path: Path) -> str:
    with path.open("rb") as file:
        # One byte more than there may be: enough to tell, however much would follow.
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise SettingsError(f"{path}: more than {_MAX_BYTES} bytes; a ConfigMap holds at most 1048576")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 (byte {error.start}); save the file as UTF-8") from error


def _parse(text: str, path: Path) -> Any:
    """Return what a text means, after a look at how much its aliases stand for."""
    _check_extent(text, path)
    return YAML(typ="safe", pure=True).load(text) or {}


def _check_extent(text: str, path: Path) -> None:
    """Raise SettingsError where a text holds too many values or levels, aliases expanded."""
    values = 0
    started: list[tuple[str | None, int, int]] = []  # of each open list or mapping: anchor, values before, levels below
    anchors: dict[str, tuple[int, int]] = {}  # of each complete one: values, levels
    for event in YAML(typ="safe", pure=True).parse(text):
        levels = 0
        match event:
            case SequenceStartEvent() | MappingStartEvent():
                started.append((event.anchor, values, 0))
                values += 1
            case SequenceEndEvent() | MappingEndEvent():
                anchor, before, below = started.pop()
                levels = below + 1
                if anchor is not None:
                    anchors[anchor] = (values - before, levels)
            case ScalarEvent():
                values += 1
                if event.anchor is not None:
                    anchors[event.anchor] = (1, 0)
            case AliasEvent():
                if event.anchor in (anchor for anchor, _, _ in started):
                    raise SettingsError(f"{path}: the alias *{event.anchor} stands inside of what it names", hint=_FIX)
                # One without an anchor is refused by the reader, which names its line.
                expanded, levels = anchors.get(event.anchor, (0, 0))
                values += expanded
        if started:
            anchor, before, below = started[-1]
            started[-1] = (anchor, before, max(below, levels))
        if values > _MAX_VALUES:
            raise SettingsError(f"{path}: more than {_MAX_VALUES} values, aliases expanded", hint=_FIX)
        if len(started) + levels > _MAX_DEPTH:
            raise SettingsError(f"{path}: nested deeper than {_MAX_DEPTH} levels, aliases expanded", hint=_FIX)


def _unwrap(document: Any, path: Path) -> Any:
    """Return the settings in a ConfigMap, as ``kubectl get configmap -o yaml`` prints it; anything else unchanged."""
    if not isinstance(document, dict) or document.get("kind") != "ConfigMap":
        return document
    data = document.get("data")
    text = data.get(_KEY) if isinstance(data, dict) else None
    if not isinstance(text, str):
        raise SettingsError(f"{path}: a ConfigMap without {_KEY}", hint="name the operator's: bert-operator-settings")
    return _parse(text, path)


_FIX = "fix the ConfigMap of the operator's settings; its fields are those of docs/guides/install.md"


def load_settings(path: Path | None) -> Settings:
    """Read the settings, or the ConfigMap that the operator's Deployment mounts them from; all defaults without a file.

    Raises:
        SettingsError: the file cannot be read, or holds something else.
    """
    if path is None:
        return Settings()
    try:
        document = _unwrap(_parse(_read_text(path), path), path)
        if not isinstance(document, dict):
            raise SettingsError(f"{path}: got {type(document).__name__}; allowed: fields with values", hint=_FIX)
        # A key that holds nothing, such as one whose entries are all commented out, is as if it were left out. Where
        # that would open a profile to everybody, it is refused.
        kept = {name: document[name] for name in ("profileNamespaces",) if document.get(name) is not None}
        settings = Settings.model_validate({**without_nulls(document), **kept})
        problems = [str(problem) for problem in find_profile_problems(settings.profiles, settings.default_profile)]
        known = ", ".join(sorted(settings.profiles)) or "none, since there are no profiles"
        problems += [
            f"profileNamespaces.{name}: got a profile that is not there; allowed: {known}; next: correct the name"
            for name in sorted(settings.profile_namespaces.keys() - settings.profiles.keys())
        ]
    except OSError as error:
        raise SettingsError(f"{path}: cannot read the settings ({error.strerror})") from error
    except YAMLError as error:
        found = "\n".join(map(printable, str(error).splitlines()))
        raise SettingsError(f"{printable(path)}: not YAML ({found})", hint=_FIX) from error
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, item['loc']))}: got {item['input']!r:.200}; {item['msg']}" for item in error.errors()
        ]
    if problems:
        found = "\n".join(f"  {printable(problem)}" for problem in problems)
        raise SettingsError(f"{printable(path)}: {len(problems)} problem(s)\n{found}", hint=_FIX)
    return settings
