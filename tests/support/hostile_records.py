"""What programs may print and leave where records are expected: sound, random and hostile, drawn from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

UID, ATTEMPT = "uid-1", 2
OURS = f"job={UID} attempt={ATTEMPT}"

_EVENTS = ("progress", "stage_started", "checkpoint", "resumed", "failed", "stopped", "succeeded", "", "x" * 300)
_EVENTS += ("evaluated", "result")
_KEYS = ("step", "steps", "remaining_s", "loss", "sequences_per_s", "stage", "path", "message", "reason", "k" * 90)
_KEYS += ("mlm_accuracy", "target_met", "when")
_VALUES = (
    *("0", "1", "-5", "-0", "100", "9" * 15, "9" * 18, "9" * 19, "9" * 5000, "-" + "9" * 18, "1.5", "-0.5"),
    *("1e300", "-1e300", "1e999", "nan", "inf", "1_0", "0x10", "٣", "", "true", "phase1", "x" * 5000, "[/]", "\u2028"),
    *('"\\ud800"', '"\\u0000"', '"\\u001b[2J"', '"a b"', '"\\n"', '"', '"\\', "'", '"\U0001f600"', "=", "a=b", "{}"),
)
_JOBS = (OURS, OURS, OURS, f"job=uid-2 attempt={ATTEMPT}", f"job={UID} attempt=1", f"job={UID}", f"attempt={ATTEMPT}")
_LEFT = (None, True, -1, 0, 1, 2, 3, 137, 10**30, 1.5, "", "x" * 5000, "\ud800", "\x00", [], {}, [[]] * 50)


def draw_lines(count: int, seed: int) -> Iterator[str]:
    """Yield that many lines, each of which begins like a record but for a few."""
    drawn = random.Random(seed)
    for _ in range(count):
        words = [f"event={drawn.choice(_EVENTS)}"] if drawn.random() < 0.9 else []
        words += [f"{drawn.choice(_KEYS)}={drawn.choice(_VALUES)}" for _ in range(drawn.randrange(6))]
        words.append(drawn.choice(_JOBS))
        if drawn.random() < 0.2:
            words += [f"figure_{number}={drawn.random()}" for number in range(70)]
        line = "bert-trainer/1 " + " ".join(words)
        if drawn.random() < 0.1:
            at = drawn.randrange(len(line))
            line = line[:at] + chr(drawn.choice((0, 9, 10, 34, 92, 0x85, 0x2028, 0xFFFD, 0x1F600))) + line[at + 1 :]
        yield line


def draw_endings(count: int, seed: int) -> Iterator[str]:
    """Yield that many termination messages, of at most 4,096 characters as Kubernetes has it."""
    drawn = random.Random(seed)
    keys = ("reason", "exitCode", "message", "firstFailure", "stage", "step", "checkpoint")
    for _ in range(count):
        record = {key: drawn.choice(_LEFT) for key in keys if drawn.random() < 0.7}
        if drawn.random() < 0.5:
            record["firstFailure"] = {"host": drawn.choice((*_LEFT, "demo-a1-worker-1", "demo-a1-worker-" + "9" * 300))}
        text = json.dumps(record)
        yield drawn.choice((text, text, text, text[: drawn.randrange(len(text) + 1)], "[" * 4000, '{"a":' * 800))[:4096]
