"""A node of this machine for the control plane: containerd, kubelet, kube-proxy and CoreDNS. Needs root.

Together with control_plane.py a whole cluster without Docker. Pods share a bridge of their own; images are imported,
never pulled. Everything lies below one folder and is taken down again: processes, containers, mounts, the bridge,
rules of iptables and control groups.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

import psutil

from cluster_api import Api, wait_until
from component import Component, free_ports
from control_plane import BUILD, CONFIGURATION, ControlPlane, built_programs, fill, fill_documents
from image_layout import ImageLayout
from nfs_stand_in import NfsStandIn

IMAGES = BUILD.parents[1] / "images.sh"
NODE_PROGRAMS = ("kubelet", "kube-proxy", "coredns")
BRIDGE, BRIDGE_ADDRESS, POD_NETWORK = "bert-test0", "10.88.0.1", "10.88.0.0/16"
DNS_DOMAIN = "cluster.local"
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
NETWORK_NAME = "bert-operator-test"
PAUSE_IMAGE = "bert-operator.test/pause:1"
NODE_NAME = "node-1"

TOOLS = (
    "containerd", "ctr", "runc", "iptables", "conntrack", "ip", "gcc", "buildah", "skopeo", "debootstrap", "openssl",
)  # fmt: skip

POD_LOG_LINKS = Path("/var/log/containers")
CNI_RESULTS = Path("/var/lib/cni/results")
SHIM_SOCKETS = Path("/run/containerd/s")
"""Where kubelet, containerd's network library and its shims write whatever folder they are given."""

POLICY_TABLE = "bert_job_policies"
"""nftables' table (family bridge) of tests that play a network plugin."""
KUBELET_CLIENT = "kubelet-client.pem"
"""Key and certificate by which kubelet knows the API server."""
PAUSE_SOURCE = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"


class Cluster(ControlPlane):
    """A control plane with one node: ``with Cluster(folder) as cluster: ...``."""

    def __init__(self, folder: Path) -> None:
        """Folder: must not hold anything yet; keep it short, since sockets lie in it."""
        super().__init__(folder)
        # The certificate is made out for the advertised address.
        self.url = f"https://{BRIDGE_ADDRESS}:{self._ports['kube-apiserver']}"
        self.api = Api(self.url, self.ca_file, self.admin_token)

    def __enter__(self) -> Cluster:
        """Start everything; about 25 s on two cores."""
        missing = missing_tools()
        assert not missing, missing
        # People have kubectl; a bare machine gets the one of the release.
        own = () if shutil.which("kubectl") else ("kubectl",)
        self._node_programs = built_programs(*NODE_PROGRAMS, *own)
        self.kubectl = shutil.which("kubectl") or str(self._node_programs / "kubectl")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._forwarded = FORWARDING.read_text()
        self._sockets = {path.name for path in SHIM_SOCKETS.glob("*")}
        make_bridge()
        try:
            super().__enter__()
            self._start_node()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Take everything down, in the order in which it depends on each other. May be called again."""
        node = getattr(self, "node_parts", ())
        for part in reversed(node):
            if part.name != "containerd":
                part.kill()
        end_containers(self.folder)
        for part in node:
            part.kill()
        super().close()
        unmount_below(self.folder)
        if hasattr(self, "_node_programs"):
            remove_bridge(self._node_programs / "kube-proxy")
        if hasattr(self, "_forwarded"):
            FORWARDING.write_text(self._forwarded)
        remove_control_groups()
        if hasattr(self, "_sockets"):
            remove_traces(self.folder, self._sockets)
        if os.path.isdir(self.folder):
            for name in ("containerd", "kubelet"):
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def import_image(self, archive: Path) -> None:
        """Make an image of an archive (docker-archive or oci-archive) known to the node."""
        self.ctr("images", "import", "--no-unpack", str(archive))

    def ctr(self, *words: str, stdin: Path | None = None) -> str:
        """Run containerd's client."""
        address = str(self.folder / "containerd.sock")
        command = ["ctr", "--address", address, "--namespace", "k8s.io", *words]
        with open(stdin or os.devnull, "rb") as source:
            answer = subprocess.run(command, stdin=source, capture_output=True, text=True)
        assert answer.returncode == 0, f"{' '.join(command)}: {answer.stderr}"
        return answer.stdout

    @property
    def content_store(self) -> Path:
        """The folder in which containerd keeps the blobs of images."""
        return self.folder / "containerd/root/io.containerd.content.v1.content"

    def _start_node(self) -> None:
        folder, programs = self.folder, self._node_programs
        config = write_node_files(folder, self.kubeconfig(self.admin_token))
        self.nfs = NfsStandIn(folder / "nfs")
        self.node_parts = (
            Component(
                "containerd",
                [str(shutil.which("containerd")), "--config", str(config["containerd"])],
                folder / "containerd.log",
                lambda: (folder / "containerd.sock").exists(),
            ),
            Component(
                "coredns",
                [str(programs / "coredns"), "-conf", str(config["coredns"])],
                folder / "coredns.log",
                lambda: "CoreDNS-" in (folder / "coredns.log").read_text(errors="replace"),
            ),
            Component(
                "kube-proxy",
                [str(programs / "kube-proxy"), "--config", str(config["kube-proxy"])],
                folder / "kube-proxy.log",
                lambda: True,
            ),
            Component(
                "kubelet",
                [
                    str(programs / "kubelet"),
                    f"--config={config['kubelet']}",
                    f"--kubeconfig={config['kubeconfig']}",
                    f"--root-dir={folder / 'kubelet'}",
                    f"--hostname-override={NODE_NAME}",
                    f"--node-ip={BRIDGE_ADDRESS}",
                    f"--cert-dir={folder / 'kubelet-certificates'}",
                ],
                folder / "kubelet.log",
                lambda: node_is_ready(self.api),
                environment={"PATH": f"{self.nfs.programs}:{os.environ['PATH']}"},
            ),
        )
        for part in self.node_parts[:3]:
            part.start()
        import_pause(self, folder)
        self.node_parts[3].start()

    def _write_secrets(self) -> None:
        super()._write_secrets()
        make_client_certificate(self.folder / KUBELET_CLIENT)

    def api_server_arguments(self) -> list[str]:
        """Reachable from pods, and able to find the node by its address."""
        changed = {
            "--bind-address": "0.0.0.0",  # noqa: S104 - pods and this machine; nobody else has a token
            "--advertise-address": BRIDGE_ADDRESS,
            "--endpoint-reconciler-type": "lease",
        }
        kept = [word for word in super().api_server_arguments() if word.split("=")[0] not in changed]
        return [
            *kept,
            *(f"{name}={value}" for name, value in changed.items()),
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={self.folder / KUBELET_CLIENT}",
            f"--kubelet-client-key={self.folder / KUBELET_CLIENT}",
        ]

    def controller_manager_arguments(self) -> list[str]:
        """All controllers, and the CA for service accounts."""
        kept = [word for word in super().controller_manager_arguments() if not word.startswith("--controllers")]
        return [*kept, f"--root-ca-file={self.ca_file}"]


def build_images(*names: str) -> Path:
    """Build what has changed since it was built last, and return the layout that holds it."""
    answer = subprocess.run([str(IMAGES), *names], stdout=subprocess.PIPE, text=True)
    assert answer.returncode == 0, f"{IMAGES} failed; what it printed to standard error says why"
    return Path(answer.stdout.strip())


def import_images(cluster: Cluster, *names: str) -> None:
    """Build images, unless nothing has changed since, and make each known to the node as bert-operator.test/NAME:dev.

    names: as tools/images.sh takes them, such as trainer-mpich; none: operator and trainer.
    """
    names = names or ("operator", "trainer")
    layout = ImageLayout(build_images(*names))
    for name in names:
        layout.import_into(cluster.content_store, cluster.ctr, name, f"bert-operator.test/{name}:dev")


def volume_folder(cluster: Cluster, namespace: str) -> Path:
    """Return the folder of this machine that is the volume of a namespace."""
    return cluster.folder / "volumes" / namespace


def make_volume(cluster: Cluster, namespace: str, claim: str) -> Path:
    """Make a volume that all pods of a namespace may share, with its claim; returns its folder on this machine."""
    folder = volume_folder(cluster, namespace)
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    for document in fill_documents("volume", namespace=namespace, claim=claim, folder=folder):
        cluster.api.create(document).expect()
    return folder


def missing_tools() -> str:
    """Say what is missing for a node on this machine, all at once; empty where nothing is."""
    if os.geteuid() != 0:
        return "a node needs root: network bridge, mounts and control groups"
    if other := next((name for name in ("kubelet", "k3s") if is_running(name)), None):
        return f"{other} runs here; a second cluster would take its rules of iptables away"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    missing += [] if Path("/usr/lib/cni/bridge").exists() else ["/usr/lib/cni/bridge"]
    return f"not installed: {', '.join(missing)}; tools/node_packages.sh installs them" if missing else ""


def is_running(program: str) -> bool:
    """Tell whether a process of this name runs; one that has ended and waits for its parent does not."""
    found = (process.info for process in psutil.process_iter(["name", "status"]))
    return any(one["name"] == program and one["status"] != psutil.STATUS_ZOMBIE for one in found)


def write_node_files(folder: Path, kubeconfig: Path) -> dict[str, Path]:
    """Write the configuration of every part and return their paths."""
    kubelet_port, healthz_port, proxy_port, metrics_port = free_ports(4)
    values = {
        "folder": folder, "kubeconfig": kubeconfig, "address": BRIDGE_ADDRESS, "bridge": BRIDGE,
        "pod_network": POD_NETWORK, "network_name": NETWORK_NAME, "dns_domain": DNS_DOMAIN, "node_name": NODE_NAME,
        "pause_image": PAUSE_IMAGE, "kubelet_port": kubelet_port, "healthz_port": healthz_port,
        "proxy_port": proxy_port, "metrics_port": metrics_port, "client": folder / KUBELET_CLIENT,
    }  # fmt: skip
    (folder / "cni").mkdir(exist_ok=True)
    files = {
        "cni": ("pods.conflist", "cni/10-pods.conflist"),
        "containerd": ("containerd.toml", "containerd.toml"),
        "kubelet": ("kubelet.yaml", "kubelet.yaml"),
        "kube-proxy": ("kube-proxy.yaml", "kube-proxy.yaml"),
        "coredns": ("Corefile", "Corefile"),
    }
    for template, name in files.values():
        (folder / name).write_text(fill((CONFIGURATION / template).read_text(), values))
    return {**{part: folder / name for part, (_, name) in files.items()}, "kubeconfig": kubeconfig}


def node_is_ready(api: Api) -> bool:
    """Tell whether the node takes pods."""
    answer = api.get("v1/nodes", NODE_NAME)
    conditions = answer.body["status"].get("conditions") or () if answer.status == 200 else ()
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def import_pause(cluster: Cluster, folder: Path) -> None:
    """Make the image that holds a pod's namespaces: one static program that waits."""
    build = folder / "pause"
    build.mkdir(exist_ok=True)
    (build / "pause.c").write_text(PAUSE_SOURCE)
    run(["gcc", "-static", "-Os", "-o", str(build / "pause"), str(build / "pause.c")])
    (build / "Dockerfile").write_text('FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n')
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "overlay"}
    run(["buildah", "build", "-q", "-t", PAUSE_IMAGE, str(build)], environment)
    archive = build / "pause.tar"
    archive.unlink(missing_ok=True)
    run(["buildah", "push", "-q", PAUSE_IMAGE, f"docker-archive:{archive}:{PAUSE_IMAGE}"], environment)
    cluster.import_image(archive)


def make_client_certificate(path: Path) -> None:
    """Write a new key with a certificate of an administrator that it signs itself; whom it is shown trusts the file."""
    path.touch(mode=0o600)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subject = ["-subj", "/O=system:masters/CN=kube-apiserver"]
    run(["openssl", "req", "-x509", *key, *subject, "-keyout", str(path), "-out", f"{path}.crt"])
    path.write_bytes(path.read_bytes() + Path(f"{path}.crt").read_bytes())


def make_bridge() -> None:
    """Make the bridge that pods join, with the address at which DNS and the API server are found."""
    subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], capture_output=True)
    subprocess.run(["ip", "address", "add", f"{BRIDGE_ADDRESS}/16", "dev", BRIDGE], capture_output=True)
    run(["ip", "link", "set", BRIDGE, "up"])
    # Of tests that were killed: it would drop packets of pods that have the same addresses now.
    if shutil.which("nft"):
        subprocess.run(["nft", "delete", "table", "bridge", POLICY_TABLE], capture_output=True)
    FORWARDING.write_text("1")


def remove_bridge(kube_proxy: Path) -> None:
    """Take the bridge away, and the rules that kube-proxy and CNI made."""
    subprocess.run([str(kube_proxy), "--cleanup"], capture_output=True, timeout=60)
    # Pods that nobody has taken down in order; a pair of devices goes with the pod's end of it.
    pods = subprocess.run(["ip", "-oneline", "link", "show", "master", BRIDGE], capture_output=True, text=True).stdout
    for namespace in re.findall(r"link-netns (\S+)", pods):
        subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)
    subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True)
    lines = subprocess.run(["iptables-save"], capture_output=True, text=True).stdout.splitlines()
    # Those of kubelet, and one for every pod, named in rules that carry the network's name.
    chain = re.compile(r"\b(?:CNI-[0-9a-f]+|KUBE-FIREWALL|KUBE-KUBELET-CANARY|KUBE-IPTABLES-HINT)\b")
    ours = {name for line in lines for name in chain.findall(line) if NETWORK_NAME in line or name.startswith("KUBE")}
    if ours:
        kept = "\n".join(line for line in lines if not ours & set(chain.findall(line))) + "\n"
        subprocess.run(["iptables-restore"], input=kept, text=True, capture_output=True)


def end_containers(folder: Path) -> None:
    """End every container of this cluster: its shims are known by containerd's address in their command line."""
    address = str(folder / "containerd.sock").encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if address in words and b"shim" in words[0]:
                for child in children_of(int(process.name)):
                    os.kill(child, signal.SIGKILL)
                os.kill(int(process.name), signal.SIGKILL)


def children_of(parent: int) -> Sequence[int]:
    """Return the processes that a process has started."""
    return [int(word) for word in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def unmount_below(folder: Path) -> None:
    """Unmount what containers and pods have left mounted, deepest first; a mount may be busy for a moment."""

    def none_left() -> bool:
        points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        ours = sorted((point for point in points if point.startswith(f"{folder}/")), reverse=True)
        for point in ours:
            subprocess.run(["umount", "--lazy", point.replace("\\040", " ")], capture_output=True)
        return not ours

    wait_until(none_left, f"mounts below {folder} to go")


def remove_control_groups() -> None:
    """Remove the control groups that kubelet made, which are empty by now."""
    groups = Path("/sys/fs/cgroup")
    for root in (groups / "kubepods", *groups.glob("*/kubepods")):  # of version 2, of version 1
        for folder in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()
        with contextlib.suppress(OSError):
            root.rmdir()


def remove_traces(
    folder: Path,
    sockets_before: Collection[str],
    logs: Path = POD_LOG_LINKS,
    results: Path = CNI_RESULTS,
    sockets: Path = SHIM_SOCKETS,
) -> None:
    """Remove what was written outside the folder: links to logs below it, results of our network, deserted sockets.

    sockets_before: names of those that were there when the cluster was started.
    """
    ours = [path for path in logs.glob("*") if path.is_symlink() and path.readlink().is_relative_to(folder)]
    for path in [*results.glob(f"{NETWORK_NAME}-*-eth0")]:
        # Every pod has a loopback device as well, whose result carries no name of ours.
        pod = path.name.removeprefix(f"{NETWORK_NAME}-").removesuffix("-eth0")
        ours += [path, results / f"cni-loopback-{pod}-lo"]
    served = Path("/proc/net/unix").read_text()
    ours += [path for path in sockets.glob("*") if path.name not in sockets_before and str(path) not in served]
    for path in ours:
        path.unlink(missing_ok=True)
    for place in (logs, results, sockets):
        with contextlib.suppress(OSError):  # not empty, or not there
            place.rmdir()


def run(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    """Run a program that has to succeed."""
    answer = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert answer.returncode == 0, f"{' '.join(command)}: {answer.stderr}"
