"""Long random walks of the operator's own reconciler: whatever happens, the rules of job_walk hold.

A walk that breaks a rule is shortened before it is shown; its seed and what happened are in the message.
``make test`` walks 3,000 steps, ``make test-long`` 15,000 and 100,000 others. WALK_STEPS and
WALK_SEED ask for more of them.
"""

from __future__ import annotations

import os
import random

import pytest

from job_walk import Shape, World
from walk_events import EVENTS, Event

STEPS = int(os.environ.get("WALK_STEPS", "3000"))
STEPS_EACH = 60
FIRST_SEED = int(os.environ.get("WALK_SEED", "1"))

Walk = list[tuple[Event, int]]


def draw(seed: int) -> tuple[Shape, Walk]:
    rng = random.Random(seed)
    shape = Shape.draw(rng)
    events = rng.choices(list(EVENTS), list(EVENTS.values()), k=STEPS_EACH)
    return shape, [(event, rng.randrange(1 << 12)) for event in events]


def broken_rule(shape: Shape, walk: Walk) -> tuple[str, list[str]]:
    """Return the rule that a walk breaks, empty where it breaks none, and what happened."""
    world = World(shape)
    try:
        for event, number in walk:
            world.tell(f"{event.__name__} {number}".upper())
            event(world, number)
        world.tell("FINISH")
        world.finish()
    except AssertionError as broken:
        return str(broken) or "an assertion", world.told
    return "", world.told


def shortened(shape: Shape, walk: Walk) -> Walk:
    """Return a walk without the events that its broken rule does not need."""
    length = len(walk) // 2
    while length:
        position = 0
        while position < len(walk):
            shorter = walk[:position] + walk[position + length :]
            if broken_rule(shape, shorter)[0]:
                walk = shorter
            else:
                position += length
        length //= 2
    return walk


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("steps", "first_seed"),
    [
        (STEPS, FIRST_SEED),
        pytest.param(15_000, FIRST_SEED, marks=pytest.mark.long),
        pytest.param(100_000, FIRST_SEED + 10_000, marks=pytest.mark.long),
    ],
    ids=["few", "some", "many"],
)
def test_no_walk_breaks_a_rule(steps: int, first_seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    walks = -(-steps // STEPS_EACH)
    for seed in range(first_seed, first_seed + walks):
        shape, walk = draw(seed)
        if broken_rule(shape, walk)[0]:
            short = shortened(shape, walk)
            rule, told = broken_rule(shape, short)
            pytest.fail(f"seed {seed}: {rule}\n{shape}\n" + "\n".join(told), pytrace=False)
    with capsys.disabled():
        print(f"\n{walks * STEPS_EACH} steps, seeds {first_seed} to {first_seed + walks - 1}", end=" ")  # noqa: T201
