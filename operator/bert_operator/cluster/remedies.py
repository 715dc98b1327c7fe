"""What helps against the causes that Kubernetes names: one table from words of a message to a remedy. Pure.

The words are those of kube-scheduler (pkg/scheduler/framework/plugins), of API server's admission (ResourceQuota,
LimitRanger, PodSecurity, Priority, RuntimeClass, ServiceAccount), of kubelet and of runtimes, Kubernetes 1.31 to 1.36,
and those of Volcano and of the scheduler plugins for groups of pods. They are prose that changes between releases: any
number of causes may stand in a message, and one that is not here has no remedy. The message itself says what is known.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class _Remedy(NamedTuple):
    """A cause, by the words that tell of it, and what helps."""

    words: re.Pattern[str]
    remedy: str


def _table(*rows: tuple[str, str]) -> tuple[_Remedy, ...]:
    return tuple(_Remedy(re.compile(words, re.IGNORECASE), remedy) for words, remedy in rows)


_TAINT = r"untolerated taint(?:\(s\))? \{"
_NODES = "kubectl get nodes: "
_WAIT = "wait until other pods end"

_SCHEDULING = _table(
    (
        r"Insufficient (?!free)",
        f"{_WAIT}, with an autoscaler for new nodes, or lower spec.resources (launcher.resources, worker.resources) to "
        "what a node has",
    ),
    (r"Too many pods", f"{_WAIT}, or add nodes: these run as many pods as kubelet's maxPods lets them"),
    (
        r"free ports for the requested pod ports",
        f"{_WAIT}: with network.hostNetwork a node has one pod at a port, so use more nodes, or leave it out",
    ),
    (
        r"scheduling gates|SchedulingGated",
        "kubectl get pod -o yaml: whoever has set spec.schedulingGates takes them away, a queue such as Kueue "
        "once it admits the pods",
    ),
    (
        r"pod group is not ready|in gang unschedulable|enough sibling pods|PodGroup .* gets rejected|"
        r"rejected while waiting|pods from a gang|pods? group .*(?:not ready|waiting)",
        "kubectl describe podgroup: its pods start together, once there is room for all of minMember",
    ),
    (
        _TAINT + r"node\.kubernetes\.io/(?:not-ready|unreachable|network-unavailable)|had unknown conditions",
        f"{_NODES}one is not ready; have it repaired, or wait until it is back",
    ),
    (
        _TAINT + r"node\.kubernetes\.io/(?:memory|disk|pid)-pressure",
        "kubectl describe node: one is short of memory, disk or processes; have it cleaned up, or wait",
    ),
    (
        rf"were unschedulable|{_TAINT}node\.kubernetes\.io/unschedulable",
        f"{_NODES}one is cordoned; kubectl uncordon it, or wait",
    ),
    (
        _TAINT + r"(?!node\.kubernetes\.io/)",
        "add the taint that is named to spec.scheduling.tolerations, or use nodes without it",
    ),
    (
        r"untolerated taint(?:\(s\))?(?!\(s\))(?! \{)",  # newer schedulers do not name it
        "kubectl describe nodes: those of node.kubernetes.io go once a node is ready again, any other taint needs an "
        "entry in spec.scheduling.tolerations",
    ),
    (
        r"Pod's node affinity|node selector|scheduler-enforced node affinity|requested node name|"
        r"plugin\(s\) \[[^]]*NodeAffinity",
        "correct spec.scheduling.nodeSelector and affinity: no node has these labels",
    ),
    (
        r"existing pods anti-affinity",
        f"{_WAIT}: those on these nodes keep others away by their own anti-affinity, or use other nodes",
    ),
    (r"pod (?:anti-)?affinity rules", "correct spec.scheduling.affinity, or add nodes"),
    (
        r"topology spread constraints \(missing required label\)",
        "correct topologyKey of spec.scheduling.topologySpreadConstraints: nodes lack that label",
    ),
    (
        r"topology spread constraints(?! \(missing)",
        "raise maxSkew of spec.scheduling.topologySpreadConstraints, or set whenUnsatisfiable: ScheduleAnyway, or add "
        "nodes where fewer workers run",
    ),
    (
        r"persistentvolumeclaim \"[^\"]*\" not found",
        "create the claim that is named: kubectl get pvc lists those that there are",
    ),
    (r"persistentvolumeclaim \"[^\"]*\" is being deleted", "name another claim, or create it anew once it is gone"),
    (
        r"unbound immediate PersistentVolumeClaims|ephemeral volume controller",
        "kubectl get pvc, and kubectl describe pvc: the claim has no volume yet, and says there why; a class without a "
        "provisioner makes none",
    ),
    (
        r"volume node affinity|PersistentVolume's node affinity|available volume zone",
        "kubectl get pvc,pv: the volume can be reached from other nodes or another zone than those with room; use "
        "nodes there, or a volume that all nodes reach",
    ),
    (
        r"available persistent volumes to bind|non-existent (?:pv|persistentvolume)",
        "kubectl get pvc,pv: no volume that is free fits the claim, or its volume is gone",
    ),
    (r"enough free storage", "kubectl describe pvc: have storage freed, or ask for a smaller claim"),
    (r"max volume count", f"{_WAIT}, or use other nodes: these have as many volumes attached as they may"),
    (
        r"ReadWriteOncePod|available disk",
        "wait until the pod that uses the claim has ended, or use a claim with ReadWriteMany, which several pods share",
    ),
    (
        r"resource ?claim|allocate all claims|device ?class",
        "check what spec.resources.resourceClaims names, and which devices are free: kubectl get "
        "resourceclaims,resourceclaimtemplates,resourceslices",
    ),
    (r"no nodes available", f"{_NODES}there are none, or none is ready"),
)

_LABEL = "label the namespace pod-security.kubernetes.io/enforce=baseline or privileged"
_POD_SECURITY = _table(
    (r"volume types|hostPath volumes", "use a persistentVolumeClaim instead of nfs or hostPath"),
    (r"host namespaces|hostPort", "leave out network.hostNetwork"),
    (r"IPC_LOCK", "leave out network.lockMemory and resources.rdma"),
    (
        r"runAsNonRoot|runAsUser=0|must not include \"?(?:DAC_OVERRIDE|AUDIT_WRITE|SET.ID|SYS_CHROOT)",
        "set a runAsUser other than 0 in spec.securityContext",
    ),
)

_ANEW = "delete the job and apply it with "
_QUOTA = _table(
    # A quota on requests or limits refuses pods that have none.
    (
        r"must specify",
        f"{_ANEW}what is named set in spec.resources and launcher.resources, or have a LimitRange of the namespace "
        "fill it in",
    ),
    (
        r"insufficient quota to match these scopes",
        "have a ResourceQuota made for that scope, or name another class in spec.scheduling.priorityClassName",
    ),
    (
        r"status unknown for quota",
        "wait: nobody has counted for this ResourceQuota yet; if that lasts, kube-controller-manager does not run",
    ),
    # count/jobs.batch and count/pods count what has ended as well; pods and amounts of resources do not.
    (r"requested: [^:]*\bcount/", "delete jobs that have ended, or have the ResourceQuota raised"),
    (
        r"requested: (?:[^:]*,)?(?:services|configmaps|secrets|persistentvolumeclaims)\b",
        "delete objects of that kind that nobody needs, or have the ResourceQuota raised",
    ),
    (
        r"exceeded quota",
        "lower spec.workers or spec.resources, or have the ResourceQuota raised, or wait until other pods of the "
        "namespace end",
    ),
)

_ADMISSION = _table(
    (r"no PriorityClass with name", f"have it created, or {_ANEW}another spec.scheduling.priorityClassName"),
    (r"RuntimeClass \"[^\"]*\" not found", f"have it created, or {_ANEW}another runtimeClassName"),
    (r"service ?account .*not found", "create the service account that is named"),
    (
        r"(?:maximum|max) .* per (?:Container|Pod) is .*(?:limit|request) is (?!specified)|max limit to request ratio",
        f"{_ANEW}less in spec.resources (launcher.resources, worker.resources), or have the LimitRange changed",
    ),
    (
        r"minimum .* per (?:Container|Pod) is .*(?:limit|request) is (?!specified)",
        f"{_ANEW}more in spec.resources (launcher.resources, worker.resources), or have the LimitRange changed",
    ),
    (
        r"no (?:limit|request) is specified",
        f"{_ANEW}what is named set in spec.resources and launcher.resources, or have the LimitRange give a default",
    ),
    (r"failed calling webhook", "have the webhook that is named repaired: it does not answer"),
    (r"admission webhook|ValidatingAdmissionPolicy", "ask whoever runs what is named: it refuses the pods"),
)

_HTTP = r"(?<![\w.:/@-])"
"""Before a status of HTTP: what stands before a number in an image's name, such as a tag or a port, does not."""
IMAGE_NAMES = "spec.image, or the volume's image.reference, whichever is named"
"""Where a pod's images are named: kubelet reports a volume's image, too, as one that a container waits for."""
_PULLS = _table(
    (
        rf"toomanyrequests|rate limit|{_HTTP}429\b",
        "wait, or name credentials in spec.imagePullSecrets: the registry counts",
    ),
    (
        rf"unauthorized|authentication required|access denied|denied:|{_HTTP}40[13]\b",
        "name the registry's credentials in spec.imagePullSecrets, or correct "
        f"{IMAGE_NAMES}: registries refuse names that they do not have as well",
    ),
    (
        r"no such host|i/o timeout|connection refused|network is unreachable|deadline exceeded|TLS handshake|x509",
        "see that the node reaches the registry and trusts its certificate; or, if another registry was meant, correct "
        f"{IMAGE_NAMES}",
    ),
    (r"no space left", "kubectl describe node: its disk is full; have it cleaned up"),
    (
        r"no match for platform|exec format|no matching manifest",
        "use an image that was built for the nodes' processors",
    ),
    (
        r"ErrImageNeverPull|pull policy of Never",
        "load the image into the node, or have it pulled by another spec.imagePullPolicy or volume's image.pullPolicy; "
        f"or correct {IMAGE_NAMES}",
    ),
)

_CONTAINERS = _table(
    (
        r"(?:secret|configmap) \"[^\"]*\" not found|find key|non-existent (?:secret|config)",
        "create the Secret or ConfigMap that is named, with that key",
    ),
    (r"runAsNonRoot|run as root|non-numeric user", "set spec.securityContext.runAsUser to a user other than root"),
    (
        r"executable file not found|no such file or directory: unknown|exec: ",
        "use an image that holds this program: spec.image has to be a trainer's, or workspace.command another",
    ),
    (r"subPath", "create the folder that subPath names on the volume, or correct subPath"),
    (
        r"deadline exceeded|failed to reserve container name|timed out",
        "kubectl describe node: its runtime is slow; wait",
    ),
)

_MOUNTS = _table(
    (
        r"Multi-Attach|already (?:exclusively )?(?:attached|used)",
        "wait until the pod on the other node has ended, or use a claim with ReadWriteMany, which several nodes share",
    ),
    (
        r"helper program|unknown filesystem type|bad option",
        "install what mounts this kind of volume on the node, such as nfs-common, or use nodes that have it",
    ),
    (
        r"(?:secret|configmap) \"[^\"]*\" not found|non-existent (?:secret|config)",
        "create the Secret or ConfigMap that is named",
    ),
    (r"hostPath type check", "create the path on the node, or correct hostPath"),
    (
        r"mount\.nfs|\bnfs\b|access denied|connection (?:timed out|refused)|no route to host|no such file",
        "check the claim or the NFS server and path of dataset, output and volumes, and that the node can reach it",
    ),
)


def how_to_schedule(message: str) -> str:
    """Return the remedy for a scheduler's message; empty if unknown."""
    return _join(_SCHEDULING, message, "; or ")


def how_to_pass_pod_security(message: str) -> str:
    """Return the remedy for a violation of a Pod Security standard."""
    return _join((*_POD_SECURITY, _Remedy(re.compile(""), _LABEL)), message, "; or ")


def how_to_fit_quota(message: str) -> str:
    """Return the remedy for a refusal by a ResourceQuota; empty for any other refusal."""
    # The first alone: the last rows stand for all that those before do not name.
    return next((row.remedy for row in _QUOTA if row.words.search(message) and "quota" in message.lower()), "")


def how_to_be_admitted(message: str) -> str:
    """Return the remedy for a refusal by another admission plugin; empty if unknown."""
    return _join(_ADMISSION, message, "; and ")


def how_to_pull(message: str) -> str:
    """Return the remedy for a failed image pull; empty if unknown."""
    return next((row.remedy for row in _PULLS if row.words.search(message)), "")


def how_to_start(message: str) -> str:
    """Return the remedy for a container that cannot be set up; empty if unknown."""
    return next((row.remedy for row in _CONTAINERS if row.words.search(message)), "")


def how_to_mount(message: str) -> str:
    """Return the remedy for a volume that cannot be mounted; empty if unknown."""
    return next((row.remedy for row in _MOUNTS if row.words.search(message)), "")


def _join(table: tuple[_Remedy, ...], message: str, between: str) -> str:
    return between.join(dict.fromkeys(row.remedy for row in table if row.words.search(message)))
