"""The command line of ``bert-pod``: what it rejects, with which exit code and message, and the record it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pods
from bert_trainer.pod.__main__ import main

LAUNCHER = ("launcher", "--ranks", "2", "--workers", "2", "--slots", "1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "ROLE"),
        (["single", "--", "true"], "--ranks"),
        (["single", "--ranks", "0", "--", "true"], "got '0'; allowed: 1 to 100,000"),
        (["single", "--ranks", "1", "--mpi", "LAM", "--", "true"], "invalid choice: 'LAM'"),
        (["worker", "--port", "70000"], "got '70000'; allowed: 1 to 65,535"),
        ([*LAUNCHER, "--wait-seconds", "soon", "--", "true"], "got 'soon'; allowed: whole seconds"),
    ],
)
def test_wrong_options_are_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["single", "--ranks", "1"], "single: got no program\nhint: put -- PROGRAM"),
        (["single", "--ranks", "1", "--", "no-such-program"], "no-such-program: cannot be started (No such file"),
        (["worker", "--", "sleep"], "worker: got a program, 'sleep'; allowed: none"),
        (
            ["launcher", "--ranks", "5", "--workers", "2", "--slots", "2", "--", "x"],
            "--ranks: got 5; allowed: up to 4, 2 workers with 2 slots each",
        ),
        (["worker", "--key-folder", "/no/keys"], "/no/keys/id_rsa: is missing; sshd needs it"),
    ],
)
def test_wrong_input_ends_with_2_and_leaves_a_record(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "termination.json"
    at = words.index("--") if "--" in words else len(words)
    assert main([*words[:at], "--termination-log", str(record), *words[at:]]) == 2
    assert f"bert-pod: {message}" in capsys.readouterr().err
    left = json.loads(record.read_text())
    assert (left["reason"], left["exitCode"]) == ("InputError", 2)
    assert message in left["message"]


def test_a_record_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "folder" / "termination.json"
    assert main(["single", "--ranks", "1", "--termination-log", str(missing)]) == 2


def test_outside_of_a_pod_nothing_appears_in_dev() -> None:
    if os.path.exists("/dev/termination-log"):
        pytest.skip("this is a pod")
    main(["single", "--ranks", "1"])
    assert not os.path.exists("/dev/termination-log")


@pytest.mark.skipif(os.getuid() != 0, reason="requires root, to become a user without a name")
@pytest.mark.parametrize("role", [["worker"], [*LAUNCHER, "--", "true"]])
def test_a_user_id_without_a_passwd_entry_is_refused(role: list[str]) -> None:
    code = f"import os, sys\nos.setuid(54321)\nfrom bert_trainer.pod.__main__ import main\nsys.exit(main({role!r}))"
    # Under -I the package's folder is not on the path by itself, and the interpreter may be unreadable to others.
    loaded = f"import sys; sys.path.insert(0, {str(pods.ROOT / 'trainer')!r})\nimport bert_trainer.pod.__main__\n{code}"
    ended = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, env=pods.environment())
    assert ended.returncode == 2
    assert "/etc/passwd: has no entry for user id 54321; ssh refuses unknown users" in ended.stderr
    assert "hint: set spec.securityContext.runAsUser: 54321" in ended.stderr


def test_only_the_standard_library_is_loaded() -> None:
    code = "import sys, bert_trainer.pod.__main__; print([n for n in ('torch', 'numpy', 'psutil') if n in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=pods.environment())
    assert answer.stdout == "[]\n"
