"""Two borders on real pods: that of a job's network, and that of a namespace, which two tenants try.

The first is drawn by the NetworkPolicies that the operator writes. A stand-in of a network plugin enforces them for
everything in this folder (policy_enforcer.py), so only on the one-node cluster. Inputs: a job of two pods at work; a
job whose program sleeps, of a tenant who may create jobs and nothing else; pods of a tenant with Kubernetes' own
``edit``; a pod of no job, and one of another namespace. Observed: which ports answer whom, and what each tenant reached
of files, processes, node and API. SECURITY.md draws the conclusions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from cluster_api import Api, Json
from control_plane import fill_documents
from job_cluster import CLAIM, READER, SYSTEM, USER, JobCluster, KubectlFailed, Namespace, poll
from node import BRIDGE_ADDRESS, NODE_NAME, Cluster
from policy_enforcer import POLICIES, PolicyEnforcer
from real_jobs import GROUP, RealJob, pod_name, training_job

pytestmark = pytest.mark.timeout(400)

JOBS = f"{GROUP}/v1alpha1/bertpretrainjobs"
RBAC = "rbac.authorization.k8s.io"
SUBMITTER, EDITOR = "submitter", "editor"
JOB, INTRUDER, IMPOSTOR = "border", "intruder", "impostor"
SSH = 2222
SECRET, SSH_KEY = "theirs", f"{JOB}-a1-ssh"
OPEN, SILENT = "open", "no answer"

# What each tenant reached. Whatever the namespace holds is both's, by right or by naming it; nothing beyond it is.
REACHED: dict[str, set[str]] = {
    # With the pods of its own.
    "files of another job, read": {SUBMITTER, EDITOR},
    "files of another job, written": {SUBMITTER, EDITOR},
    "a Secret of the namespace, by its name": {SUBMITTER, EDITOR},
    "sshd, MPI and Gloo of another job": set(),
    "the same with the job's label on a pod": {EDITOR},
    "metrics of the operator": {EDITOR},  # from a pod of no job, which no policy holds back
    "a token of a ServiceAccount": {EDITOR},
    "Secrets by that token": set(),
    "Secrets of the API server without one": set(),
    "pods of kubelet": set(),
    "processes of others, or capabilities": set(),
    # By requests.
    "the ssh key of another job": {EDITOR},  # no job may name it
    "another's job": {EDITOR},
    "a program in another job's pod": {EDITOR},
    "the status of a job, written": set(),
    "jobs of another namespace": set(),
    "pods of another namespace": set(),
    "settings of the operator": set(),
    "a pod in the operator's namespace": set(),
    "a folder of the node": set(),
    "nodes": set(),
}

_LISTENING = """
import json
found = set()
for name in ('tcp', 'tcp6'):
    for line in open(f'/proc/net/{name}').readlines()[1:]:
        _, local, _, state = line.split()[:4]
        address, _, port = local.partition(':')
        if state == '0A' and not address.endswith(('0100007F', '00000001000000')):
            found.add(int(port, 16))
print(json.dumps(sorted(found)))
"""
# Asks for all at once. A packet that is dropped is never refused, so only time tells; SYN is repeated after a second.
_KNOCK = """
import errno, json, select, socket, time
waiting, found = {}, {}
for address, port in given['targets']:
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex((address, port))
    waiting[one] = f'{address}:{port}'
end_s = time.monotonic() + 1.6
while waiting and (left_s := end_s - time.monotonic()) > 0:
    for one in select.select([], list(waiting), [], left_s)[1]:
        error = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        found[waiting.pop(one)] = errno.errorcode[error] if error else given['open']
        one.close()
print(json.dumps({**found, **dict.fromkeys(waiting.values(), given['silent'])}))
"""
_LOOK_AROUND = """
import json, os, pathlib, ssl, urllib.error, urllib.request
def read(path):
    try:
        return path.read_text()
    except OSError:
        return ''
def write(path):
    try:
        path.write_text('')
        path.unlink()
        return True
    except OSError:
        return False
def answers(url, token=''):
    try:
        request = urllib.request.Request(url, headers={'Authorization': 'Bearer ' + token} if token else {})
        context = ssl._create_unverified_context() if url.startswith('https') else None
        return urllib.request.urlopen(request, timeout=1.6, context=context).status == 200
    except OSError:
        return False
token = read(pathlib.Path('/var/run/secrets/kubernetes.io/serviceaccount/token'))
folder = pathlib.Path(given['folder'])
status = read(pathlib.Path('/proc/self/status'))
here = pathlib.Path('/proc')
commands = [read(one / 'cmdline') for one in here.glob('[0-9]*') if one.name != str(os.getpid())]
print(json.dumps({
    'files of another job, read': bool(read(folder / 'ledger.jsonl')),
    'files of another job, written': write(folder / 'planted'),
    'a Secret of the namespace, by its name': os.environ.get('KEY') == given['secret'],
    'metrics of the operator': answers(given['operator'] + '/metrics'),
    'a token of a ServiceAccount': bool(token),
    'Secrets by that token': bool(token) and answers(given['secrets'], token),
    'Secrets of the API server without one': answers(given['secrets']),
    'pods of kubelet': answers(given['kubelet'] + '/pods'),
    'processes of others, or capabilities': any(given['others'] in one for one in commands)
    or int(status.split('CapEff:')[1].split()[0], 16) != 0,
}))
"""


@dataclass(frozen=True, slots=True)
class Scene:
    """Who is there, while the job trains."""

    node: Cluster
    home: Namespace
    abroad: Namespace
    job: RealJob
    tenants: dict[str, Api]
    places: dict[str, tuple[Namespace, str]]
    """Pods from which something is tried."""
    targets: list[tuple[str, int]]
    """Addresses of the job's pods with the ports that anything in them listens on."""

    def run(self, program: str, who: str, **given: Any) -> Any:
        """Run a program in one of those pods, and return what it prints."""
        namespace, pod = self.places[who]
        return json.loads(namespace.python(f"given = {given!r}\n{program}", pod=pod))

    def knock(self, who: str, targets: list[tuple[str, int]] | None = None) -> set[str]:
        """Try to connect from a pod to all of the job's ports, or to others; return the answers."""
        found = self.run(_KNOCK, who, targets=targets or self.targets, open=OPEN, silent=SILENT)
        assert len(found) == len(targets or self.targets)
        return set(found.values())


OUTSIDERS = (INTRUDER, READER, "abroad")
"""A pod of another job, one of no job, and one of another namespace."""


def sleeping_job(secret: str = SECRET) -> Json:
    """Return a job whose program sleeps, with a Secret."""
    claim = {"persistentVolumeClaim": {"claimName": CLAIM}}
    job = training_job(
        INTRUDER,
        workers=1,
        workspace={"volume": claim, "command": ["sleep", "3600"]},
        env=[{"name": "KEY", "secret": {"name": secret, "key": "ssh-privatekey"}}],
    )
    job["spec"]["stages"] = job["spec"]["stages"][:1]
    return job


def pod_document(image: str, name: str, label: str = "") -> Json:
    """Return a pod as a tenant writes it, with volume and Secret."""
    (document,) = fill_documents("reader", name=name, image=image, user=USER, claim=CLAIM)
    document["metadata"]["labels"] = {f"{GROUP}/job": label} if label else {}
    reference = {"name": SECRET, "key": "ssh-privatekey"}
    document["spec"]["containers"][0]["env"] = [{"name": "KEY", "valueFrom": {"secretKeyRef": reference}}]
    return document


def bind(home: Namespace) -> None:
    """Give the two tenants their rights, and the namespace a Secret."""
    rule = {"apiGroups": [GROUP], "resources": ["bertpretrainjobs"], "verbs": ["create"]}
    version = f"{RBAC}/v1"
    documents: list[Json] = [
        {"apiVersion": version, "kind": "Role", "metadata": {"name": SUBMITTER}, "rules": [rule]},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": {"ssh-privatekey": SECRET}},
    ]
    for user, kind, name in ((SUBMITTER, "Role", SUBMITTER), (EDITOR, "ClusterRole", "edit")):
        subject = {"apiGroup": RBAC, "kind": "User", "name": user}
        reference = {"apiGroup": RBAC, "kind": kind, "name": name}
        binding = {"apiVersion": version, "kind": "RoleBinding", "metadata": {"name": user}, "roleRef": reference}
        documents.append({**binding, "subjects": [subject]})
    home.apply(*documents)


def address_of(namespace: Namespace, pod: str) -> str:
    found = namespace.find("pod", pod)
    assert found is not None
    return str(found["status"]["podIP"])


@pytest.fixture(scope="module")
def enforced(enforcer: PolicyEnforcer | None) -> PolicyEnforcer:
    """The stand-in at work."""
    if enforcer is None:
        pytest.skip("requires nft and the one-node cluster: whether another's plugin enforces policies is not known")
    return enforcer


@pytest.fixture(scope="module")
def scene(
    cluster: JobCluster, enforced: PolicyEnforcer, data: Namespace, fresh: Callable[[str], Namespace]
) -> Iterator[Scene]:
    """Everybody is there, and the rules are loaded."""
    node = cluster.node
    assert node is not None
    bind(data)
    tenants = {user: node.api.as_user(user) for user in (SUBMITTER, EDITOR)}
    job, intruder = RealJob(data, JOB), RealJob(data, INTRUDER)
    document = training_job(JOB)
    document["spec"]["stages"][0]["pretrain"]["length"] = {"steps": 100_000}
    data.apply(document)
    tenants[SUBMITTER].create(sleeping_job(), data.name).expect()
    for name, label in ((EDITOR, ""), (IMPOSTOR, JOB)):
        tenants[EDITOR].create(pod_document(cluster.trainer_image, name, label), data.name).expect()
    abroad = fresh("abroad")
    abroad.make_claim()
    intruder.wait_phase("Running")
    job.wait_steps(3)
    own = [pod_name(pod) for role in ("launcher", "worker") for pod in job.pods(role)]
    places = {
        "launcher": (data, job.pod("launcher")),
        "worker": (data, job.pod("worker", 0)),
        INTRUDER: (data, intruder.pod("single")),
        READER: (data, READER),
        EDITOR: (data, EDITOR),
        IMPOSTOR: (data, IMPOSTOR),
        "abroad": (abroad, READER),
    }
    for name in (EDITOR, IMPOSTOR):
        data.wait_pod(name, "Running")
    enforced.wait_isolated(data.name, [*own, places[INTRUDER][1]])
    ports = {pod: json.loads(data.python(_LISTENING, pod=pod)) for pod in own}
    targets = [(address_of(data, pod), port) for pod in own for port in ports[pod]]
    yield Scene(node, data, abroad, job, tenants, places, targets)
    data.kubectl("delete", "bpj", JOB, INTRUDER, "--wait=false")
    data.kubectl("delete", "pod", EDITOR, IMPOSTOR, "--wait=false")
    for client in tenants.values():
        client.close()
    poll(lambda: not job.pods("worker") and not intruder.pods("single"), "the pods to go")


@pytest.fixture(scope="module")
def heard(scene: Scene) -> dict[str, set[str]]:
    """What everybody heard who knocked at all ports of the job, all at once."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(scene.places, pool.map(scene.knock, scene.places), strict=True))


def test_a_job_of_two_pods_trains_to_its_end_behind_its_border(whole: RealJob, enforced: PolicyEnforcer) -> None:
    held = {pod for namespace, pod in enforced.ever_isolated if namespace == whole.namespace.name}
    assert {"whole-a1-worker-0", "whole-a1-worker-1", pod_name(whole.pods("launcher")[0])} <= held
    assert whole.status()["phase"] == "Succeeded"


def test_there_is_more_to_reach_than_sshd(scene: Scene) -> None:
    listening = {address: {port for one, port in scene.targets if one == address} for address, _ in scene.targets}
    assert len(listening) == 3, "launcher and two workers"
    workers = [address_of(scene.home, pod_name(pod)) for pod in scene.job.pods("worker")]
    for address in workers:
        assert SSH in listening[address]
        assert listening[address] - {SSH}, "MPI's"


def test_the_job_s_own_pods_reach_every_port(heard: dict[str, set[str]]) -> None:
    assert heard["launcher"] == {OPEN}
    assert heard["worker"] == {OPEN}


@pytest.mark.parametrize("who", OUTSIDERS)
def test_nobody_else_gets_an_answer_from_any(heard: dict[str, set[str]], who: str) -> None:
    assert heard[who] == {SILENT}


def test_the_job_reaches_no_service_outside_of_it_and_others_do(scene: Scene) -> None:
    operator = operator_address(scene)
    assert scene.knock("worker", [operator]) == {SILENT}
    assert scene.knock(READER, [operator]) == {OPEN}


def test_tenants_reach_what_their_namespace_holds_and_nothing_beyond(scene: Scene, heard: dict[str, set[str]]) -> None:
    found: dict[str, set[str]] = {what: set() for what in REACHED}
    for tenant, place, volume in ((SUBMITTER, INTRUDER, "/mnt/output"), (EDITOR, EDITOR, "/volume")):
        for what, is_reached in {**look_around(scene, place, volume), **requests_of(scene, tenant)}.items():
            found[what] |= {tenant} if is_reached else set()
        found["sshd, MPI and Gloo of another job"] |= {tenant} if heard[place] != {SILENT} else set()
    found["the same with the job's label on a pod"] |= {EDITOR} if heard[IMPOSTOR] == {OPEN} else set()
    assert found == REACHED


def look_around(scene: Scene, place: str, volume: str) -> dict[str, bool]:
    """Return what is reached from a pod."""
    kubelet = scene.node.api.get("v1/nodes", NODE_NAME).expect()["status"]["daemonEndpoints"]["kubeletEndpoint"]
    address, port = operator_address(scene)
    found = scene.run(
        _LOOK_AROUND,
        place,
        folder=f"{volume}/{JOB}",
        others="sshd",
        secret=SECRET,
        operator=f"http://{address}:{port}",
        secrets=f"{scene.node.url}/api/v1/namespaces/{scene.home.name}/secrets",
        kubelet=f"https://{BRIDGE_ADDRESS}:{kubelet['Port']}",
    )
    return {str(what): bool(is_reached) for what, is_reached in found.items()}


def requests_of(scene: Scene, tenant: str) -> dict[str, bool]:
    """Return what a tenant reaches of the API."""
    api, home, abroad = scene.tenants[tenant], scene.home.name, scene.abroad.name
    pod = pod_document("any", "planted")
    on_the_node = pod_document("any", "planted")
    on_the_node["spec"]["volumes"] = [{"name": "volume", "hostPath": {"path": "/"}}]
    status = {"status": {"phase": "Succeeded"}}
    answers = {
        "the ssh key of another job": api.get("v1/secrets", SSH_KEY, home)
        if tenant == EDITOR
        else api.create(sleeping_job(SSH_KEY), home, dry_run=True),
        "another's job": api.get(JOBS, JOB, home),
        "the status of a job, written": api.patch(JOBS, JOB, status, home, subresource="status"),
        "jobs of another namespace": api.get(JOBS, "", abroad),
        "pods of another namespace": api.get("v1/pods", READER, abroad),
        "settings of the operator": api.get("v1/configmaps", "", SYSTEM),
        "a pod in the operator's namespace": api.create(pod, SYSTEM, dry_run=True),
        "a folder of the node": api.create(on_the_node, home, dry_run=True),
        "nodes": api.get("v1/nodes", ""),
    }
    found = {what: answer.status < 300 for what, answer in answers.items()}
    return {**found, "a program in another job's pod": can_exec(scene, tenant)}


def can_exec(scene: Scene, tenant: str) -> bool:
    """Run a program in a rank's pod as a tenant."""
    command = ["exec", scene.job.pod("worker"), "--as", tenant, "--", "true"]
    if tenant == EDITOR:
        scene.home.kubectl(*command)
        return True
    with pytest.raises(KubectlFailed, match="Forbidden"):
        scene.home.kubectl(*command)
    return False


def operator_address(scene: Scene) -> tuple[str, int]:
    """Return address and port at which the operator serves its metrics."""
    pods = scene.node.api.list("v1/pods", SYSTEM, labelSelector="app.kubernetes.io/name=bert-operator")
    (pod,) = [pod for pod in pods if pod["status"]["phase"] == "Running"]
    (port,) = [port["containerPort"] for port in pod["spec"]["containers"][0]["ports"] if port["name"] == "http"]
    return pod["status"]["podIP"], port


def test_without_the_policies_everybody_reaches_every_port(scene: Scene, heard: dict[str, set[str]]) -> None:
    """Otherwise the tests above would show nothing. It comes last."""
    assert heard
    for job in (JOB, INTRUDER):
        scene.tenants[EDITOR].delete(POLICIES, f"{job}-pods", scene.home.name).expect()
    for who in OUTSIDERS:
        poll(lambda who=who: scene.knock(who) == {OPEN}, f"{who} to reach the job")  # type: ignore[misc]
    # MPI and sshd hang up on whom they do not know.
    scene.job.wait_steps(scene.job.steps_trained() + 2)
