"""Children as whole documents: one golden file per case, with the frozen configuration that its pods mount.

Every file but that of the single pod gives of the two JSON texts only what differs from that one's.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from bert_operator.render.frozen import RUN_CONFIG_KEY, SPEC_KEY, render_config_map
from child_cases import CHILD_CASES, case_child, case_frozen

BASE = "single-pod"
_SAME = object()


class Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such, and what appears twice twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


Dumper.add_representer(str, _represent_text)


def difference(value: Any, base: Any) -> Any:
    """Return the part of a value that is not in another one."""
    if isinstance(value, dict) and isinstance(base, dict):
        parts = {key: difference(value.get(key), base.get(key)) for key in (*value, *(base.keys() - value))}
        return {key: part for key, part in parts.items() if part is not _SAME} or _SAME
    return _SAME if value == base else value


def frozen_document(case: str) -> dict[str, Any]:
    document: dict[str, Any] = copy.deepcopy(render_config_map(case_frozen(case)))
    for key in (RUN_CONFIG_KEY, SPEC_KEY):
        document["data"][key] = json.loads(document["data"][key])
    return document


def readable(case: str) -> str:
    config_map = frozen_document(case)
    if case != BASE:
        base = frozen_document(BASE)
        for key in (RUN_CONFIG_KEY, SPEC_KEY):
            found = difference(config_map["data"][key], base["data"][key])
            config_map["data"][key] = {} if found is _SAME else found
    return yaml.dump_all([case_child(case), config_map], Dumper=Dumper, sort_keys=False, width=120)


@pytest.mark.parametrize("case", CHILD_CASES)
def test_a_child_is_what_its_golden_file_says(case: str, golden: Callable[[str, str], None]) -> None:
    golden(f"children/{case}.yaml", readable(case))
