"""A random walk over the spec: whatever people and controllers do, the operator catches up and leaves nothing behind.

``make walk`` walks ten times as many transitions. Both print their seed; SPEC_WALK_SEED begins elsewhere.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster_api import Api
from operator_process import OperatorProcess
from spec_walk import SpecWalk, settings

TRANSITIONS, EACH = 200, 100
SEED = int(os.environ.get("SPEC_WALK_SEED", "1"))


@pytest.mark.timeout(400)
def test_a_walk_over_the_spec_finds_nothing(api: Api, namespace: str, operator_config: Path, tmp_path: Path) -> None:
    rival = OperatorProcess(tmp_path, operator_config, namespaces=[namespace], name="rival", **settings())
    with (
        OperatorProcess(tmp_path, operator_config, namespaces=[namespace], **settings()) as operator,
        SpecWalk(api, namespace, operator, rival) as walk,
    ):
        for seed in range(SEED, SEED + TRANSITIONS // EACH):
            finding = walk.episode(seed, EACH)
            assert finding is None, f"{finding}\nthe same again: make walk WALK_ARGS='--seed {seed}'"
    print(walk.count)
    assert walk.count.transitions.total() >= TRANSITIONS
