"""Knows what became of each request, told by what was submitted and what the client got back.

The second witness of the proof: it never looks at the scheduler's counters. A request is a :class:`Life`;
what it does in one pass is a :class:`Part`.
"""

from __future__ import annotations

from enum import Enum, auto


class Miscount(AssertionError):
    """A message, or the engine's own books, differ from what was counted independently."""


class State(Enum):
    """Where a request is."""

    WAITING = auto()
    RUNNING = auto()
    PAUSED = auto()
    """A streaming session between two inputs."""
    LOST = auto()
    """A session that vLLM took out of its queues by mistake (see ``Ledger.turn_ended``)."""
    DONE = auto()


class Part:
    """What one request does in one pass."""

    __slots__ = (
        "admission", "before", "drafts", "life", "made", "prefill", "rejected_before", "samples", "target",
        "tokens", "void",
    )  # fmt: skip

    def __init__(self, life: Life, before: int, tokens: int, drafts: int) -> None:
        self.life = life
        self.before = before
        """Tokens in KV before the pass, as the engine has it."""
        self.tokens = tokens
        """Tokens computed, drafts not counted."""
        self.drafts = drafts
        self.target = life.target
        self.prefill = before < life.target
        self.samples = before + tokens >= life.target
        self.rejected_before = life.rejected
        self.admission = life.admissions
        self.void = False
        """Whether what the pass gives is thrown away by the engine."""
        self.made: list[int] = []
        """The tokens that the model made."""

    def __repr__(self) -> str:
        facts = (self.before, self.tokens, self.target, self.drafts)
        return f"{self.life.name}{'p' if self.prefill else 'd'}{facts}"


class Life:
    """One request, or one session of several inputs."""

    __slots__ = (
        "aborted",
        "admissions",
        "first_start",
        "known",
        "loads",
        "name",
        "owed",
        "parts",
        "position",
        "preemptions",
        "prefilled",
        "rejected",
        "resumable",
        "resuming",
        "returned",
        "state",
        "stops",
        "structured",
        "target",
        "turn_left",
        "turns",
        "updates",
    )  # fmt: skip

    def __init__(self, name: str, prompt: int, output: int) -> None:
        self.name = name
        self.known = prompt
        """Tokens that the client knows: its prompt and what it got."""
        self.turn_left = output
        """Tokens that the client may still get for its last input."""
        self.state = State.WAITING
        self.admissions = 0
        self.target = 0
        """Known tokens at admission: a pass that starts below is prefill."""
        self.position = 0
        """Tokens in KV: those of scheduled passes, less drafts known to be rejected."""
        self.rejected = 0
        """Drafts of this admission that were rejected in passes that are back."""
        self.parts: list[Part] = []
        """In flight, oldest first."""
        self.prefilled = 0
        self.owed = 0
        """What it had to compute: known tokens less those that were there, for each admission."""
        self.first_start = 0
        self.returned = 0
        self.preemptions = 0
        self.resuming = False
        """Whether its last admission followed a preemption."""
        self.loads = 0
        self.aborted = False
        self.resumable = False
        self.structured = False
        self.stops = False
        self.turns = 1
        self.updates: list[tuple[int, int] | None] = []
        """Inputs that wait for the turn to end: tokens and most tokens to generate; None ends the session."""

    def expect(self, holds: bool, what: str) -> None:
        """Raise :class:`Miscount` unless ``holds``."""
        if not holds:
            facts = {slot: getattr(self, slot) for slot in self.__slots__ if slot != "parts"}
            raise Miscount(f"{self.name}: {what}; {facts}")


class Ledger:
    """All requests that are not done, by name."""

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self.waiting: set[str] = set()
        self.lost: list[str] = []
        self.submitted = 0
        self.finished = 0
        self.aborted = 0

    def submit(self, life: Life) -> None:
        """A client sent a request."""
        self.lives[life.name] = life
        self.waiting.add(life.name)
        self.submitted += 1

    def abort(self, names: list[str]) -> None:
        """A client gave up."""
        for name in names:
            life = self.lives.pop(name)
            life.aborted = True
            life.state = State.DONE
            self.waiting.discard(name)
            self.aborted += 1

    def preempt(self, life: Life, *, drop: bool = False) -> None:
        """The engine took a running request's KV; ``drop`` voids what is in flight.

        It is void too where older parts in flight are: their positions were computed again.
        """
        if life.state is not State.RUNNING:
            return
        life.state = State.WAITING
        self.waiting.add(life.name)
        life.owed -= max(0, life.target - life.position)
        life.position = 0
        life.preemptions += 1
        life.resuming = True
        if drop or any(part.void for part in life.parts):
            for part in life.parts:
                part.void = True

    def preempt_all(self) -> None:
        """The engine took every running request's KV."""
        for life in self.lives.values():
            self.preempt(life, drop=True)

    def admit(self, life: Life, start: int) -> None:
        """The engine began to run a request that has ``start`` tokens in KV."""
        life.state = State.RUNNING
        self.waiting.remove(life.name)
        life.admissions += 1
        if life.admissions == 1:
            life.first_start = start
        life.target = life.known
        life.owed += life.known - start
        life.position = start
        life.rejected = 0

    def turn_ended(self, life: Life, failed: bool, *, lost: bool = False) -> None:
        """The client was told that its request, or the turn of its session, has ended; ``lost``: a session
        that is in no queue afterwards.
        """
        if failed or not life.resumable:
            self.done(life, failed=failed)
            return
        for part in life.parts:
            part.void = True
        if life.state is State.WAITING:
            # It ended by a token that was in flight when it was preempted. Up to 0.32 vLLM queues the
            # session anew and then removes every copy of it from its queues.
            self.waiting.discard(life.name)
            if lost:
                life.state = State.LOST
                self.lost.append(life.name)
                return
        else:
            life.position = life.known - 1  # the last token was never computed, and a session drops it
        life.resuming = False
        life.state = State.PAUSED
        if life.updates:
            self.next_input(life, life.updates.pop(0))

    def next_input(self, life: Life, update: tuple[int, int] | None) -> None:
        """A paused session goes on with so many new tokens, or ends."""
        if update is None:
            self.done(life)
            return
        tokens, output = update
        life.known += tokens - 1
        life.turn_left = output
        life.turns += 1
        life.state = State.WAITING
        self.waiting.add(life.name)

    def done(self, life: Life, *, failed: bool = False) -> None:
        """A request is over. If it did not fail it computed what it had to compute."""
        life.state = State.DONE
        self.waiting.discard(life.name)
        del self.lives[life.name]
        self.finished += 1
        life.expect(failed or life.prefilled == life.owed, "computed other than known - cached + recomputed")
