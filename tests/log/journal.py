"""What a victim notes, line by line, so that it is known after ``kill -9``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from toril.log import Appended, Batch, Partition, Positions


@dataclass(frozen=True)
class Ask:
    """An append that a writer wants, under a key that only this one has."""

    key: str
    aggregate: int
    count: int
    expected: int | None

    def bodies(self) -> list[bytes]:
        """Each says of which append it is, and which event of how many."""
        return [f"{self.key}/{place}/{self.count}".encode() for place in range(1, self.count + 1)]


@dataclass(frozen=True)
class Answer:
    """What a writer was told."""

    partition: Partition
    first_version: int
    count: int
    first_ordinal: int


@dataclass
class Life:
    """One time that a reader was entered: what it saw and committed in one partition, by ordinal."""

    start: int
    saw: list[int] = field(default_factory=list)
    commits: int | None = None
    """The last one that it was about to commit."""
    committed: int | None = None


class Journal:
    """Read when it is opened, then added to."""

    def __init__(self, path: Path) -> None:
        self.asked: dict[str, Ask] = {}
        self.answers: dict[str, Answer] = {}
        self.conflicts: set[str] = set()
        self.repeats = 0
        """Answers that were given again."""
        self.lives: dict[Partition, list[Life]] = {}
        self.left_with: list[str] = []
        self.gone_cold = 0
        self._read(path.read_text().splitlines() if path.exists() else [])
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def close(self) -> None:
        os.close(self._file)

    def _note(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    # ------------------------------------------------------------------ a writer's

    def ask(self, ask: Ask) -> None:
        self.asked[ask.key] = ask
        expected = "-" if ask.expected is None else ask.expected
        self._note("asks", ask.key, ask.aggregate, ask.count, expected)

    def answer(self, ask: Ask, done: Appended) -> None:
        self._note("told", ask.key, done.partition, done.first_version, done.count, done.first_ordinal)

    def conflict(self, ask: Ask) -> None:
        self._note("conflict", ask.key)

    def unanswered(self) -> list[Ask]:
        return [
            ask for key, ask in self.asked.items() if key not in self.answers and key not in self.conflicts
        ]

    # ------------------------------------------------------------------ a reader's

    def begin(self, positions: Positions) -> None:
        for partition, position in positions.items():
            self._note("begins", partition, position.ordinal)

    def saw(self, batch: Batch) -> None:
        self._note("saw", batch.partition, *(entry.ordinal for entry in batch.entries))

    def commits(self, batch: Batch) -> None:
        self._note("commits", batch.partition, batch.position.ordinal)

    def committed(self, batch: Batch) -> None:
        self._note("committed", batch.partition, batch.position.ordinal)

    def left(self, problem: Exception) -> None:
        self._note("left", type(problem).__name__)

    # ------------------------------------------------------------------ a cooler's

    def cooled(self, count: int) -> None:
        if count:
            self._note("cooled", count)

    # ------------------------------------------------------------------ reading it

    def _read(self, lines: list[str]) -> None:
        for line in lines:
            what, *words = line.split(" ")
            if what == "asks":
                key, aggregate, count, expected = words
                self.asked[key] = Ask(
                    key, int(aggregate), int(count), None if expected == "-" else int(expected)
                )
            elif what == "told":
                key, partition, version, count, ordinal = words
                answer = Answer(Partition.parse(partition), int(version), int(count), int(ordinal))
                self.repeats += key in self.answers
                assert key not in self.conflicts, f"{key} was refused, and then appended"
                assert self.answers.setdefault(key, answer) == answer, f"{key} was given two answers"
            elif what == "conflict":
                (key,) = words
                assert key not in self.answers, f"{key} was appended, and then refused"
                self.conflicts.add(key)
            elif what == "left":
                self.left_with += words
            elif what == "cooled":
                self.gone_cold += int(words[0])
            else:
                self._read_life(what, Partition.parse(words[0]), [int(word) for word in words[1:]])

    def _read_life(self, what: str, partition: Partition, ordinals: list[int]) -> None:
        lives = self.lives.setdefault(partition, [])
        if what == "begins":
            lives.append(Life(ordinals[0]))
        elif what == "saw":
            lives[-1].saw += ordinals
        elif what == "commits":
            lives[-1].commits = ordinals[0]
        elif what == "committed":
            lives[-1].committed = ordinals[0]
        else:
            raise AssertionError(f"a journal says {what!r}")
