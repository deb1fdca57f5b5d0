"""Recordings of machines that give odd answers, through every command that reads one."""

from __future__ import annotations

from random import Random

from tests.fuzz import answers, commands, corpus
from tests.fuzz.case import Case, command


def make(rng: Random) -> Case:
    name = corpus.any_machine(rng)
    files = {"in.snap": answers.mutated(rng, name)}
    if rng.random() < 0.5:
        files["other.snap"] = corpus.recording(name if rng.random() < 0.6 else corpus.any_machine(rng))
    argv = commands.of_recording(rng, "in.snap", "other.snap" if len(files) > 1 else "")
    return Case(argv=command(*argv), files=files)
