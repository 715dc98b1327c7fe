"""Listens to a launcher's output: ranks that announce themselves, and the story of what follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bert_trainer.errors import WrongWorld
from bert_trainer.pod.lines import Line
from bert_trainer.pod.muster import Muster
from bert_trainer.pod.stopping import StopRequest
from bert_trainer.pod.story import Story

_NOTICE_S = 5.0


@dataclass(slots=True)
class Listener:
    """Ends a launcher that has started something else than it was asked for."""

    story: Story
    muster: Muster
    stop: StopRequest
    say: Callable[[str], None] | None = None
    """Told once where the ranks are."""
    _problem: str | None = field(default=None)

    def __post_init__(self) -> None:
        """From now on a stop that comes before the run has begun ends the launcher."""
        self.stop.has_begun = lambda: self.has_begun

    @property
    def has_begun(self) -> bool:
        """Whether all ranks have come, or rank 0 reports: an announcement may be mangled on its way, all are there."""
        return self.muster.is_complete or self.story.last_event is not None

    def take(self, line: Line) -> bool:
        """Take a line; return whether it is for people."""
        if not self.muster.take(line.text):
            self.story.note(line)
            return True
        if self._problem is None and (problem := self.muster.problem):
            self._problem = problem
            self.stop.end_child()
        elif self.muster.failures:
            # Others may wait for it for ever. Usually the launcher notices, and what they still say is of use.
            self.stop.end_child(_NOTICE_S)
        elif self._problem is None and self.muster.is_complete and self.say is not None:
            self.say(self.muster.describe())
            self.say = None
        return False

    def check(self) -> None:
        """Raise ``WrongWorld`` if that is why it was ended."""
        if self._problem is not None:
            raise WrongWorld(
                self._problem,
                hint="see whether spec.mpi.implementation names the MPI that the image's programs were built for, "
                "and whether something in the environment keeps the launcher from its host file",
            )
