"""Stands in for kubectl: a program of that name that answers from a script, and notes what it was asked.

It knows nothing of Kubernetes; tests/api_server runs the same verbs by the real one on a real API server.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]

_PROGRAM = """\
import json, os, sys, time
folder = os.path.dirname(os.path.abspath(__file__))
asked = " ".join(sys.argv[1:])
given = sys.stdin.read() if "-f -" in asked else None
with open(folder + "/calls.jsonl", "a") as calls:
    calls.write(json.dumps([sys.argv[1:], given]) + "\\n")
with open(folder + "/answers.json") as file:
    answers = json.load(file)
for number, (begin, replies) in enumerate(answers):
    if begin in asked:
        counter = f"{folder}/{number}.count"
        used = os.path.getsize(counter) if os.path.exists(counter) else 0
        with open(counter, "a") as file:
            file.write(".")
        reply = replies[min(used, len(replies) - 1)]
        sys.stdout.buffer.write(reply["output"].encode("utf-8", "surrogateescape"))
        sys.stdout.flush()
        sys.stderr.write(reply["errors"])
        sys.stderr.flush()
        if reply["hangs"]:
            time.sleep(600)
        sys.exit(reply["code"])
sys.stderr.write(f"nothing is said of: {asked}\\n")
sys.exit(99)
"""


class KubectlStandIn:
    """A folder for PATH with a program ``kubectl`` in it."""

    def __init__(self, folder: Path) -> None:
        """Write the program; it answers nothing yet."""
        self.folder = folder
        folder.mkdir(exist_ok=True)
        program = folder / "kubectl"
        # Without site and environment: 12 ms a call.
        program.write_text(f"#!{sys.executable} -IS\n{_PROGRAM}")
        program.chmod(0o755)
        self._answers: list[tuple[str, list[Json]]] = []

    def answer(self, words: str, *replies: Json) -> None:
        """Say what is answered to a call in which these words stand; the first that fit count, the last reply stays."""
        self._answers.append((words, list(replies)))
        (self.folder / "answers.json").write_text(json.dumps(self._answers))

    def answer_watch(self, resource: str, name: str, *replies: Json) -> None:
        """Say what watches of an object show, one after the other, as ``changes``; a refusal is of the read before."""
        firsts = [reply if reply["code"] else says(_first_of(reply)) for reply in replies]
        self.answer(f"get {resource} {name} ", *firsts)
        watch = f"get {resource} --field-selector=metadata.name={name} --watch"
        self.answer(watch, *(reply for reply in replies if not reply["code"]))

    def calls(self) -> list[str]:
        """Return what was asked, in order."""
        return [" ".join(words) for words, _ in self._noted()]

    def given(self, words: str) -> str:
        """Return the standard input of the only call in which these words stand."""
        (text,) = [text for asked, text in self._noted() if words in " ".join(asked)]
        assert text is not None
        return str(text)

    def _noted(self) -> list[tuple[list[str], str | None]]:
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def says(output: str | Json, *, errors: str = "", code: int = 0, hangs: bool = False) -> Json:
    """Return a reply. hangs: it does not end after what it has printed."""
    text = output if isinstance(output, str) else json.dumps(output)
    return {"output": text, "errors": errors, "code": code, "hangs": hangs}


def refuses(reason: str, message: str) -> Json:
    """Return kubectl's words for a refusal of the API server."""
    return says("", errors=f"Error from server ({reason}): {message}\n", code=1)


def items(*documents: Json) -> Json:
    """Return a list as kubectl prints it."""
    return says({"apiVersion": "v1", "kind": "List", "items": list(documents)})


def _first_of(reply: Json) -> Json:
    """Return the object of the first change."""
    found: Json = json.loads(reply["output"].splitlines()[0])["object"]
    return found


def changes(*events: tuple[str, Json], hangs: bool = False) -> Json:
    """Return what ``kubectl get --watch --output-watch-events -o json`` prints."""
    documents = ({"type": kind, "object": document} for kind, document in events)
    return says("".join(json.dumps(item) + "\n" for item in documents), hangs=hangs)
