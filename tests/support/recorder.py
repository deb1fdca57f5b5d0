"""Keeps what a described machine answers, so that a test can write a recording of it."""

from __future__ import annotations

from topocheck.host.base import Answer, Backend, HostError, key


class Recorder:
    """A backend around another that keeps each answer, error or value, under its key. Asks each question once."""

    def __init__(self, inner: Backend, answers: dict[str, Answer] | None = None) -> None:
        self.inner = inner
        self.answers: dict[str, Answer] = {} if answers is None else answers

    def ask(self, kind: str, *args: str | int) -> Answer:
        """Return the kept answer, or ask and keep it."""
        k = key(kind, args)
        if k not in self.answers:
            try:
                self.answers[k] = self.inner.ask(kind, *args)
            except HostError as e:
                self.answers[k] = e
        answer = self.answers[k]
        if isinstance(answer, HostError):
            raise HostError(answer.reason, answer.detail)
        return answer
