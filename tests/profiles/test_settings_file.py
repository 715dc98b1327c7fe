"""Settings may come from a file that others have written: whatever it holds, reading ends, and soon."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from bert_operator.cluster.settings import load_settings
from bert_operator.errors import SettingsError

LIST = "[{0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}]"
STEPS = tuple(pairwise("abcdefghi"))
MANY = "a: &a " + LIST.format("x") + "".join(f"\n{b}: &{b} {LIST.format('*' + a)}" for a, b in STEPS)
NESTED = "a: &a " + "[" * 30 + "]" * 30 + "\nb: " + "[" * 30 + "*a" + "]" * 30
MERGED = "a: &a {x: 1}" + "".join(f"\n{b}: &{b} {{<<: {LIST.format('*' + a)}}}" for a, b in STEPS)


def config_map(text: str) -> str:
    return "kind: ConfigMap\ndata:\n  settings.yaml: |\n" + "".join(f"    {line}\n" for line in text.splitlines())


@pytest.mark.parametrize("wrap", [str, config_map], ids=["file", "config-map"])
@pytest.mark.parametrize(
    ("text", "error"),
    [
        (MANY, "more than 100000 values, aliases expanded"),
        (MERGED, "more than 100000 values, aliases expanded"),
        ("a: " + "[" * 20_000 + "]" * 20_000, "nested deeper than 50 levels, aliases expanded"),
        (NESTED, "nested deeper than 50 levels, aliases expanded"),
        ("profiles: &a {p: *a}", "the alias *a stands inside of what it names"),
    ],
    ids=["aliases", "merge-keys", "brackets", "nested-aliases", "endless"],
)
def test_what_would_never_end_is_refused(text: str, error: str, wrap: type[str], tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(wrap(text))
    with pytest.raises(SettingsError, match=re.escape(f"{path}: {error}")):
        load_settings(path)


def test_no_more_is_read_than_settings_can_have() -> None:
    with pytest.raises(SettingsError, match="/dev/zero: more than 4194304 bytes; a ConfigMap holds at most 1048576"):
        load_settings(Path("/dev/zero"))


def test_a_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_bytes(b"trainerImage: \xe9")
    with pytest.raises(SettingsError, match=re.escape(f"{path}: not UTF-8 (byte 14); save the file as UTF-8")):
        load_settings(path)


def test_profiles_may_share_what_they_say_by_aliases_and_merge_keys(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("profiles:\n  a: &a {slotsPerWorker: 2, cpu: &cpu {sockets: 2}}\n  b: {<<: *a, cpu: *cpu}\n")
    assert load_settings(path).profiles == {
        "a": {"slotsPerWorker": 2, "cpu": {"sockets": 2}},
        "b": {"slotsPerWorker": 2, "cpu": {"sockets": 2}},
    }
