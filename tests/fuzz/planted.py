"""Faults of every kind, for the tests of the fuzzer itself: functions that a case calls instead of the command line."""

from __future__ import annotations

import os
import signal
import sys

from tests.fuzz.case import Case
from tests.fuzz.hostile import FORGED


def fine(case: Case) -> None:
    print("fine", sorted(os.listdir(".")), case.stdin.decode(), os.environ.get("WORD", ""))


def deep(case: Case) -> None:
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")


def traceback(case: Case) -> None:
    if b"bad\n" in case.files.get("in", b"bad\n"):
        int("²")


def of_a_child(case: Case) -> None:
    if os.fork() == 0:
        sys.stderr.write("Traceback (most recent call last):\n")
        sys.stderr.flush()
        os._exit(0)
    os.wait()


def hang(case: Case) -> None:
    while True:
        pass


def memory(case: Case) -> None:
    bytearray(2 << 30)


def killed(case: Case) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def exit_code(case: Case) -> None:
    sys.exit(7)


def escape(case: Case) -> None:
    print("a\x1b[31mb")


def escape_in_a_file(case: Case) -> None:
    with open("out", "w") as f:
        f.write("a\u202eb")


def forged_line(case: Case) -> None:
    print(f"a\n{FORGED}")


def left_behind(case: Case) -> None:
    with open(".out.tmp", "w"):
        pass


def order(case: Case) -> None:
    print(set("abcdefgh"))
