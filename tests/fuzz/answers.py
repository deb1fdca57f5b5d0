"""Mutations of what a recorded machine answers."""

from __future__ import annotations

import copy
import functools
import re
from random import Random
from typing import Any

from tests.fuzz import corpus, hostile, texts, trees
from topocheck.host.base import Answer, HostError
from topocheck.model.base import Reason

Answers = dict[str, Answer]
_WORD = re.compile(r"[A-Za-z0-9_.:-]{2,}")
_RAW = (
    "1e400",
    "-1e400",
    "9" * 400,
    "1E+2",
    "0.1e-999",
    "-0",
    "[[[[]]]]",
    '"\\ud800"',
    '"\\u0000"',
    "NaN",
    "1.0",
    "{}",
    "null",
)


DEVICES = (
    "list:/sys/class/infiniband",
    "list:/sys/class/net",
    "list:/sys/bus/pci/devices",
    "list:/sys/devices/system/node",
)
"""Folders whose entries are devices."""


def mutated(rng: Random, name: str, most: int = 5) -> bytes:
    """Return the bytes of a recording of a machine with a few of its answers, or devices, changed."""
    answers = dict(corpus.answers(name))
    for _ in range(rng.randint(1, most)):
        _mutate(rng, answers)
    sound = corpus.answers(name)
    changed = {q: a for q, a in answers.items() if q not in sound or sound[q] is not a}
    return corpus.packed(corpus.recording_text(name, changed, set(sound) - set(answers)))


def _mutate(rng: Random, answers: Answers) -> None:
    pick = rng.randrange(22)
    if pick > 19:
        _lose(rng, answers)
    elif pick < 8:
        question = _question(rng, answers)
        answers[question] = other_answer(rng, question, answers[question])
    elif pick < 10:
        _rename(rng, answers)
    elif pick == 10:
        _every(rng, answers, lambda q: answers.pop(q))
    elif pick == 11:
        refusal = _refusal(rng)
        _every(rng, answers, lambda q: answers.update({q: refusal}))
    elif pick == 12:
        _every(rng, answers, lambda q: answers.update({q: other_answer(rng, q, answers[q])}))
    elif pick == 13:
        value = hostile.text(rng)
        _every(rng, answers, lambda q: answers.update({q: _put(rng, answers[q], value)}))
    elif pick == 14:
        _swap(rng, answers)
    elif pick == 15:
        answers.pop(_question(rng, answers))
    elif pick == 16:
        answers[_question(rng, answers)] = _refusal(rng)
    elif pick == 17:
        _multiply(rng, answers)
    elif pick == 18:
        answers[_question(rng, answers)] = corpus.Raw(rng.choice(_RAW))
    else:
        answers[_question(rng, answers)] = rng.choice((hostile.scalar(rng), hostile.deep(rng)))


def other_answer(rng: Random, question: str, answer: Answer) -> Answer:
    """Return an answer that is a few edits from this one, of the same type mostly."""
    if isinstance(answer, HostError | corpus.Raw):
        return hostile.scalar(rng)
    if isinstance(answer, bytes):
        return _file(rng, question, answer)
    return trees.mutated(rng, answer, 2)


def _file(rng: Random, question: str, data: bytes) -> bytes:
    if question.endswith("/config") or rng.random() < 0.1:
        return texts.broken(rng, data)
    text = data.decode("utf-8", "surrogateescape")
    if "\n" in text.rstrip("\n"):
        text = texts.lines(rng, text, 2)
    else:
        text = rng.choice((hostile.edit(rng, text.rstrip("\n")) + "\n", hostile.text(rng), texts.words(rng, text)))
    return hostile.raw(text)


def _question(rng: Random, answers: Answers) -> str:
    """Return a question: the few of a rare kind as likely as the many of a common one."""
    kind = rng.choice(sorted({_kind(q) for q in answers}))
    return rng.choice([q for q in answers if _kind(q) == kind])


@functools.cache
def _kind(question: str) -> str:
    """Return the call, or the kind and the last part of the path."""
    kind, _, rest = question.partition(":")
    return f"{kind}:{rest.partition('|')[0].rpartition('/')[2]}" if kind in ("nvml", "cuda", "read", "psutil") else kind


def _every(rng: Random, answers: Answers, change: Any) -> None:
    """Change every question of one kind, or most of them."""
    kind = _kind(_question(rng, answers))
    share = rng.choice((0.5, 1.0, 1.0))
    for question in [q for q in answers if _kind(q) == kind][:200]:
        if rng.random() <= share:
            change(question)


SOURCES = (
    "nvml:", "nvml:DeviceGetPciInfo", "nvml:DeviceGetUUID", "nvml:DeviceGetHandle", "cuda:", "read:/sys/bus/pci",
    "list:/sys/bus/pci/devices", "read:/sys/devices/system", "list:", "readlink:", "realpath:", "stat:", "read:/proc",
    "read:/sys/class/infiniband", "list:/sys/class/infiniband", "list:/sys/class/net", "psutil:", "probe:", "run:",
    "environ:", "process:", "conf:", "now:", "duration:", "pci_names:",
)  # fmt: skip
"""Beginnings of questions that one thing answers: a driver, a folder that a container hides."""


def _lose(rng: Random, answers: Answers) -> None:
    """Take away all that one or two things answer."""
    for source in rng.sample(SOURCES, rng.choice((1, 2, 3))):
        refusal = _refusal(rng)
        gone = rng.random() < 0.3
        for question in [q for q in answers if q.startswith(source)]:
            if gone:
                del answers[question]
            else:
                answers[question] = refusal


def _put(rng: Random, answer: Answer, value: str) -> Answer:
    """Return an answer of the same type that holds the value."""
    if isinstance(answer, bytes):
        return hostile.raw(value)
    if isinstance(answer, str):
        return value
    if isinstance(answer, int | float):
        return hostile.number(rng)
    if isinstance(answer, list):
        return [*answer, value]
    if isinstance(answer, dict) and answer:
        return {**answer, rng.choice(sorted(answer)): value}
    return answer


def _refusal(rng: Random) -> HostError:
    return HostError(
        rng.choice(list(Reason)), rng.choice(("", "ENOENT", "EACCES", "NVML_ERROR_GPU_IS_LOST", hostile.text(rng)))
    )


def _swap(rng: Random, answers: Answers) -> None:
    one = _question(rng, answers)
    kind = one.partition(":")[0] if rng.random() < 0.7 else ""
    other = rng.choice([q for q in answers if q.startswith(kind)])
    answers[one], answers[other] = answers[other], answers[one]


def _names(rng: Random, answers: Answers) -> list[str]:
    """Return names of one folder of devices, or of the answers of one call: what questions are asked by."""
    lists = {q: a for q, a in answers.items() if q.startswith("list:") and isinstance(a, list) and a}
    pick = rng.random()
    if pick < 0.6 and (known := [q for q in DEVICES if q in lists]):
        names = lists[rng.choice(known)]
    elif pick < 0.75 and lists:
        names = lists[rng.choice(list(lists))]
    else:
        kind = _kind(_question(rng, answers))
        names = [v for q, a in answers.items() if _kind(q) == kind for v in _texts(a)]
    return [n for n in names if isinstance(n, str) and n]


def _texts(answer: Answer) -> list[str]:
    if isinstance(answer, str):
        return [answer]
    if isinstance(answer, dict):
        return [v for v in answer.values() if isinstance(v, str)]
    return []


def _rename(rng: Random, answers: Answers) -> None:
    """Call a device something else, wherever its name stands: in questions, lists, texts and links."""
    names = _names(rng, answers)
    if not names:
        return
    old = rng.choice(names)
    new = rng.choice((hostile.text(rng), rng.choice(hostile.DIGITS), hostile.edit(rng, old)))
    part = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(old)}(?![A-Za-z0-9_])")
    for question in list(answers):
        answer = answers[question]
        if part.search(question):
            del answers[question]
            question = part.sub(lambda _: new, question)
        answers[question] = _replaced(part, new, answer)


def _replaced(part: re.Pattern[str], new: str, answer: Answer) -> Answer:
    if isinstance(answer, str) and not isinstance(answer, corpus.Raw):
        return part.sub(lambda _: new, answer) if part.search(answer) else answer
    if isinstance(answer, bytes):
        text = answer.decode("utf-8", "surrogateescape")
        return hostile.raw(part.sub(lambda _: new, text)) if part.search(text) else answer
    if isinstance(answer, list):
        made = [_replaced(part, new, x) for x in answer]
        return made if made != answer else answer
    if isinstance(answer, dict):
        changed = {part.sub(lambda _: new, k): _replaced(part, new, v) for k, v in answer.items()}
        return changed if changed != answer else answer
    return answer


def _multiply(rng: Random, answers: Answers) -> None:
    """Give a folder many more entries, each a copy of one of them."""
    lists = [q for q, a in answers.items() if q.startswith("list:") and isinstance(a, list) and a]
    if not lists:
        return
    question = rng.choice(lists)
    names = answers[question]
    old = rng.choice(names)
    if not isinstance(old, str) or not old:
        return
    times = rng.choice((1, 1, 2, 8, 40))
    new = [
        f"{old}{i}" if rng.random() < 0.8 else re.sub(r"[0-9a-f]{2}", f"{i:02x}", old, count=1) for i in range(times)
    ]
    answers[question] = [*names, *new]
    below = [q for q in answers if f"/{old}/" in q or q.endswith(f"/{old}")][:300]
    for name in new:
        for q in below:
            a = answers[q]
            # An error is made of what it was made of, as `copy` cannot.
            same = HostError(a.reason, a.detail) if isinstance(a, HostError) else copy.copy(a)
            answers.setdefault(q.replace(f"/{old}", f"/{name}"), same)
