"""``bert-pod worker`` with a real sshd: which keys it accepts, which variables sessions get, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pods
from bert_operator.render.pods import OF_ROOTS_SSHD
from bert_trainer.pod.worker import choose_environment, quote, render_config
from cluster_api import wait_until
from component import free_ports
from pods import missing_openssh
from ssh_hosts import answers

needs_sshd = pytest.mark.skipif(bool(missing_openssh()), reason=f"requires {', '.join(missing_openssh())}")

# What shells, ssh and sshd each give a meaning to.
NASTY = {
    "PLAIN": "value",
    "EMPTY": "",
    "SPACES": "  a  b ",
    "QUOTES": """it's "so" and 'so'""",
    "BACKSLASHES": "\\ \\\\ \\n C:\\dir\\",
    "COMMENT": "# not a comment",
    "SHELL_WORDS": "$HOME `id` $(id) ; | & * ~ !",
    "EQUALS": "a=b=c",
    "TAB": "a\tb",
    "UMLAUTS": "gr\u00fc\u00dfe \u2603",
    "JSON": '{"password": "a\\"b\\\\c"}',
    "dotted.name-1": "x",
}


@contextlib.contextmanager
def worker(
    tmp_path: Path, *, through: tuple[str, ...] = (), **variables: str
) -> Iterator[tuple[pods.Running, list[str]]]:
    """Start one, through another program if wanted, and yield it with the command that runs a program in it."""
    keys, port = pods.make_keys(tmp_path), free_ports(1)[0]
    command = [*through, *pods.POD, "worker", "--port", str(port), "--key-folder", str(keys)]
    command += ["--termination-log", str(tmp_path / "record.json")]
    options = "-o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    ssh = ["ssh", "-F", "none", "-i", str(keys / "id_rsa"), *options.split(), "-p", str(port), "127.0.0.1"]
    with pods.running(command, tmp_path / "worker.log", **variables) as pod:

        def is_up() -> bool:
            assert pod.process.poll() is None, pod.output
            return answers("127.0.0.1", port)

        wait_until(is_up, lambda: f"sshd: {pod.output}")
        yield pod, ssh


@needs_sshd
def test_every_variable_reaches_a_session_as_it_is(tmp_path: Path) -> None:
    with worker(tmp_path, **NASTY, LINES="a\nb", K_MPI_JOB_ROLE="worker") as (pod, ssh):
        code = "import json, os; print(json.dumps({os.fsdecode(k): os.fsdecode(v) for k, v in os.environb.items()}))"
        answer = subprocess.run(
            [*ssh, shlex.join([sys.executable, "-c", code])], capture_output=True, text=True, check=True, timeout=10
        )
        found = json.loads(answer.stdout)
        # A shell stands between; some drop names that they cannot have themselves.
        assert {name: found.get(name, NASTY[name] if "." in name else None) for name in NASTY} == NASTY
        assert "K_MPI_JOB_ROLE" not in found
        assert "bert-pod: LINES: contains line breaks, so ranks do not get it" in pod.output
        pod.process.terminate()
        assert pod.end() == 0, pod.output


def bounded(*capabilities: str) -> tuple[str, ...]:
    """Return what starts a program with these capabilities at most, as a container of root has them."""
    allowed = "".join(f",+{name.lower()}" for name in capabilities)
    return ("setpriv", "--inh-caps", "-all", "--bounding-set", f"-all{allowed}", "--no-new-privs")


@needs_sshd
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="requires root and setpriv")
@pytest.mark.parametrize("missing", [None, "SETGID", "SETUID", "SYS_CHROOT"])
def test_root_s_sshd_needs_what_its_container_is_left_with(tmp_path: Path, missing: str | None) -> None:
    """AUDIT_WRITE as well, where the kernel keeps such records and sshd was built for it, which not all do."""
    left = [name for name in OF_ROOTS_SSHD if name != missing]
    with worker(tmp_path, through=bounded(*left)) as (pod, ssh):
        answer = subprocess.run([*ssh, "cat", "/proc/self/status"], capture_output=True, text=True, timeout=10)
        if missing is not None:
            assert answer.returncode == 255, f"{missing} is not needed: {answer.stdout}"
            return
        assert answer.returncode == 0, pod.output
        (bounding,) = (line.split()[1] for line in answer.stdout.splitlines() if line.startswith("CapBnd:"))
        assert int(bounding, 16).bit_count() == len(left), "the bound that was set holds in sessions, too"


@needs_sshd
def test_nobody_else_can_read_the_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    with worker(tmp_path, TMPDIR=str(folder), TOKEN="secret") as (pod, _):
        (config,) = folder.glob("bert-pod-*/sshd_config")
        assert config.stat().st_mode & 0o777 == 0o600
        assert config.parent.stat().st_mode & 0o777 == 0o700
        assert "TOKEN=secret" in config.read_text()
        pod.process.terminate()
        assert pod.end() == 0
    assert list(folder.iterdir()) == []


@needs_sshd
def test_ranks_are_asked_once_before_sshd_ends(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    script = tmp_path / "rank.py"
    # A rank with a child of its own, which must not be signalled, under a shell, which must not either.
    script.write_text(
        "import signal, subprocess, sys, time\n"
        "def leave(*_):\n    print('asked', flush=True); time.sleep(0.5); print(child.poll(), flush=True)\n"
        "    child.kill(); child.wait(); sys.exit(3)\n"
        "signal.signal(signal.SIGUSR1, leave)\n"
        "child = subprocess.Popen(['sleep', '30'])\n"
        "print('up', flush=True)\ntime.sleep(30)\n"
    )
    inner = f"BERT_ATTEMPT=1 OMPI_COMM_WORLD_RANK=0 sh -c {shlex.quote(f'{sys.executable} {script} > {log}; echo $?')}"
    with worker(tmp_path) as (pod, ssh), subprocess.Popen([*ssh, inner], stdout=subprocess.PIPE, text=True) as session:
        wait_until(lambda: "up" in log.read_text(), lambda: f"a program:\n{pod.output}")
        pod.process.terminate()
        assert pod.end() == 0, pod.output
        assert session.communicate(timeout=10)[0] == "3\n"
    assert log.read_text() == "up\nasked\nNone\n"


@needs_sshd
def test_ranks_that_have_left_their_session_are_found(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    code = "import signal, sys, time; signal.signal(10, lambda *_: (print('asked', flush=True), sys.exit(3))); "
    code += "print('up', flush=True); time.sleep(30)"
    daemon = f"BERT_ATTEMPT=1 PMI_RANK=1 setsid {shlex.join([sys.executable, '-c', code])} > {log} 2>&1 < /dev/null &"
    with worker(tmp_path) as (pod, ssh):
        subprocess.run([*ssh, daemon], check=True, timeout=10)
        wait_until(lambda: "up" in log.read_text(), lambda: f"a program:\n{pod.output}")
        pod.process.send_signal(signal.SIGTERM)
        assert pod.end() == 0, pod.output
    assert log.read_text() == "up\nasked\n"


@needs_sshd
def test_an_sshd_that_cannot_serve_ends_the_worker_with_4(tmp_path: Path) -> None:
    keys = pods.make_keys(tmp_path)
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        command = [*pods.POD, "worker", "--port", str(taken.getsockname()[1]), "--key-folder", str(keys)]
        (keys / "id_rsa").write_text("no key\n")
        with pods.running(command, tmp_path / "log") as pod:
            assert pod.end() == 4, pod.output
            assert "bert-pod: sshd exited with" in pod.output


# As a strict security context has it: an id of its own, no capabilities, nothing writable but /tmp.
STRICT = """
set -e
cp /etc/passwd /dev/shm/passwd-$$
echo 'bert:x:54321:54321::/tmp/home:/bin/sh' >> /dev/shm/passwd-$$
mount --bind /dev/shm/passwd-$$ /etc/passwd
rm /dev/shm/passwd-$$
# The clone may lie below /tmp, which is replaced.
mkdir -p /dev/shm/trainer-$$
cp -r "$PYTHONPATH"/. /dev/shm/trainer-$$
trap 'rm -rf /dev/shm/trainer-'$$ EXIT
export PYTHONPATH=/dev/shm/trainer-$$
mount -t tmpfs tmpfs /tmp
mkdir -p /tmp/home/.ssh
ssh-keygen -q -t ecdsa -N '' -f /tmp/home/.ssh/id_rsa
cp /tmp/home/.ssh/id_rsa.pub /tmp/home/.ssh/authorized_keys
chown -R 54321:54321 /tmp/home
chmod 1777 /tmp
mount -o remount,ro,bind /
cd /
export HOME=/tmp/home
strict="setpriv --reuid 54321 --regid 54321 --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs"
TOKEN='a  b' $strict "$PYTHON" -m bert_trainer.pod worker --port "$PORT" &
options="-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -p $PORT"
for try in $(seq 100); do
    if $strict ssh -F none $options 127.0.0.1 'id -u; echo "$TOKEN"; grep CapEff /proc/self/status'; then break; fi
    sleep 0.1
done
kill $!
wait $!
echo "ended with $?"
"""


def find_python_for_all() -> str | None:
    """Return an interpreter that a stranger may use; that of a developer often lies in a closed home."""
    for python in (sys.executable, "/usr/bin/python3"):
        code = f"import os, sys; os.setuid(54321); sys.path.insert(0, {str(pods.ROOT / 'trainer')!r})"
        stranger = f"{code}; os.execv({python!r}, [{python!r}, '-c', 'import bert_trainer.pod.__main__'])"
        if (
            subprocess.run([sys.executable, "-c", stranger], env=pods.environment(), capture_output=True).returncode
            == 0
        ):
            return python
    return None


@needs_sshd
@pytest.mark.skipif(os.getuid() != 0, reason="requires root, to give all rights up")
def test_a_worker_needs_no_rights(tmp_path: Path) -> None:
    python = find_python_for_all()
    if python is None:
        pytest.skip("requires a Python 3.11 that every user can read")
    if lacking := [name for name in ("unshare", "setpriv") if shutil.which(name) is None]:
        pytest.skip(f"requires {', '.join(lacking)}")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("requires the right to make namespaces")
    script = tmp_path / "strict.sh"
    script.write_text(STRICT)
    variables = {"PYTHON": python, "PORT": str(free_ports(1)[0]), "PYTHONDONTWRITEBYTECODE": "1"}
    with pods.running(["unshare", "--mount", "sh", str(script)], tmp_path / "log", **variables, TMPDIR="/tmp") as pod:
        assert pod.end() == 0, pod.output
    assert pod.lines[-4:] == ["54321", "a  b", "CapEff:\t0000000000000000", "ended with 0"], pod.output


def test_variables_of_the_pod_and_of_services_are_not_passed_on() -> None:
    noise = {
        "HOME": "/h",
        "HOSTNAME": "worker-0",
        "PWD": "/",
        "SHLVL": "1",
        "TERM": "xterm",
        "KUBERNETES_PORT": "tcp://10.0.0.1:443",
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "MY_DB_SERVICE_HOST": "10.0.0.2",
        "MY_DB_SERVICE_PORT": "5432",
        "MY_DB_SERVICE_PORT_HTTP": "5432",
        "MY_DB_PORT": "tcp://10.0.0.2:5432",
        "MY_DB_PORT_5432_TCP_ADDR": "10.0.0.2",
        "BERT_TERMINATION_LOG": "/t",
    }
    # The last two only look like a service's.
    kept = {"PATH": "/bin", "NVIDIA_VISIBLE_DEVICES": "GPU-1", "OTHER_SERVICE_HOST": "db", "OTHER_PORT": "5432"}
    assert choose_environment({**noise, **kept, "KEY": "a\nb"}) == (kept, ("KEY",))


def test_the_configuration_lets_in_nobody_but_the_job() -> None:
    text = render_config(port=2222, key_folder=Path("/keys"), environment={"A": "1", "B": 'x "y" \\z'})
    lines = text.splitlines()
    assert lines[:5] == [
        "Port 2222",
        "PidFile none",
        'HostKey "/keys/id_rsa"',
        'AuthorizedKeysFile "/keys/authorized_keys"',
        "StrictModes no",
    ]
    assert {"PasswordAuthentication no", "KbdInteractiveAuthentication no", "UsePAM no"} <= set(lines)
    assert lines[-1] == r'SetEnv "A=1" "B=x \"y\" \\z"'
    assert "SetEnv" not in render_config(port=1, key_folder=Path("/k"), environment={})
    assert quote("a'b") == '"a\'b"'
