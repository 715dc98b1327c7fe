"""The memory that ``bert-train import`` takes to refuse files, measured in a process of its own.

The high-water mark of a process that has done other things says nothing, nor does ``ru_maxrss`` of a new one: it
begins with that of the process which started it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_SCRIPT = """
import json, re, sys
from pathlib import Path
from bert_trainer.__main__ import main

def peak_mb():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

harmless, cases = json.load(sys.stdin)
assert main(["import", *harmless, "--output", "harmless"]) == 0  # what is loaded for it is no cost of the files
Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark to what is held now
before = peak_mb()
grown = {}
for case, arguments in cases.items():
    print(f"CASE {case}", file=sys.stderr, flush=True)
    code = main(["import", *arguments, "--output", "out"])
    grown[case] = [code, peak_mb() - before]
print("\\n" + json.dumps(grown))
"""


def refuse_all(
    harmless: Sequence[str], cases: Mapping[str, Sequence[str]], folder: Path
) -> tuple[dict[str, str], dict[str, int]]:
    """Run the command for each case, one after the other in one process.

    Args:
        harmless: Arguments of an import that succeeds, which comes first.
        cases: Arguments by name, without ``--output``.
        folder: The working directory, for what a file might leave behind.

    Returns:
        The message of each refusal, and by how many MB the process had grown after it; each must end with 2.
    """
    ended = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        input=json.dumps([harmless, cases]),
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    found = json.loads(ended.stdout.splitlines()[-1])
    assert {case for case, (code, _) in found.items() if code != 2} == set()
    messages = dict(part.split("\n", 1) for part in ended.stderr.split("CASE ")[1:])
    return messages, {case: grown for case, (_, grown) in found.items()}
