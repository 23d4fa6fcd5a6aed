"""A policy on a real server: the scheduler beside ``model.py``, which has its game from a file and plays one a load.

The server's clock stands still between steps, so that each request comes after as many steps as in the replay. The
policy is asked once a step, when all requests that are due have come; its view has the time of the model of a GPU, as
in virtual time. A foul fails the requests of the game, and the server goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from labkit.disk import atomic_write
from labkit.predict.field import SERVED
from labkit.predict.policy import Foul, Player
from labkit.predict.referee import TOO_LONG
from labkit.predict.refereed import Refereed
from labsched.plan import StepPlan
from labsched.replay import STANDSTILL, row_of
from labsched.step import Step

GAME, OUTCOME = "game.json", "outcome.json"  # in the same folder
STUCK = "the scheduler admits no request any more: {} wait and none runs"
BESIDE = '''"""The arena's scheduler, in the place of the shipped one."""

from pathlib import Path

from labkit.predict import served


class Scheduler(served.Served):
    folder = Path({folder!r})
'''


@dataclass(frozen=True)
class GameFile:
    """A game as the server reads it. The mappings are by request name."""

    policy: str
    python: str  # the interpreter that runs the policy
    most: int  # steps
    arrived: Mapping[str, float]  # when each request arrives, in seconds of virtual time
    after: Mapping[str, int]  # the number of finished steps at that time

    def write(self, folder: Path) -> None:
        (folder / OUTCOME).unlink(missing_ok=True)
        atomic_write(folder / GAME, json.dumps(asdict(self)))


@dataclass(frozen=True)
class GameOutcome:
    """How a game ended: ``seconds`` of processor time that the policy took, or why it was disqualified."""

    seconds: float = 0.0
    foul: str = ""
    why: str = ""

    @classmethod
    def read(cls, folder: Path) -> GameOutcome | None:
        """None: the game has not ended."""
        path = folder / OUTCOME
        return cls(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


class Served(Refereed):
    """The scheduler of one game. Without a game it answers as the shipped one does."""

    folder: ClassVar[Path]

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        path = self.folder / GAME
        self._game = GameFile(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
        self.steps, self.now = 0, 0.0
        self.arrived = self._game.arrived if self._game else {}
        self._seconds = SERVED.step_time()
        self._computed = self._empty = 0
        self._planned: tuple[object, StepPlan] | None = None

    def plan(self) -> StepPlan:
        """The plan of the next step: the same however often it is asked for, unless other requests are there."""
        if not (self._game and (self.waiting or self.running)):
            return self._shipped()
        if self._arrivals < sum(after <= self.steps for after in self._game.after.values()):
            return self._shipped()
        there = [[request.number for request in group] for group in (self.waiting, self.running)]
        if self._planned is None or self._planned[0] != there:
            try:
                self._planned = there, self._ask_policy()
            except Foul as foul:
                self._end(GameOutcome(foul=foul.word, why=str(foul)))
                raise
        return self._planned[1]

    def _shipped(self) -> StepPlan:
        """A plan by the shipped answers; the policy learns nothing of it."""
        self.player, player = None, self.player
        try:
            return super().plan()
        finally:
            self.player = player

    def _ask_policy(self) -> StepPlan:
        assert self._game
        if self.player is None:
            self.begin(Player(Path(self._game.policy), self._game.python), self)
        self.now = max(self.now, *(self.arrived[request.name] for request in self.waiting), 0.0)
        return super().plan()

    def step(self, plan: StepPlan | None = None) -> Step:
        step = super().step(plan)
        self._planned = None
        if not (self._game and self.player):
            return step
        self.steps += bool(step.batch or step.waiting)
        if step.batch:
            self.now += self._seconds(row_of(step))
            self._computed += 1
            self._empty = 0
        else:
            self._empty += 1
        if not (self.running or self.waiting):
            atomic_write(self.folder / OUTCOME, json.dumps(asdict(GameOutcome(self.player.seconds))))
        elif self._empty > STANDSTILL or self._computed > self._game.most:
            stuck = self._empty > STANDSTILL
            why = STUCK.format(len(self.waiting)) if stuck else TOO_LONG.format(self._game.most)
            self._end(GameOutcome(foul="starves", why=why))
            raise Foul("starves", why)
        return step

    def _end(self, outcome: GameOutcome) -> None:
        atomic_write(self.folder / OUTCOME, json.dumps(asdict(outcome)))
        self._game = None  # a policy that was disqualified plays no more
        if self.player:
            self.player.close()
            self.player = None
