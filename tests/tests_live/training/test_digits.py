"""The digits are those of scikit-learn, and a perceptron learns them."""

from __future__ import annotations

import sys

import pytest

from topocheck.tests_live.training import digits as train_digits
from topocheck.tests_live.training.digits import GLOBAL_BATCH, TEST, DigitsError, learn, load, network, read_rows

pytestmark = pytest.mark.torch


def test_rows_are_what_load_digits_gives():
    datasets = pytest.importorskip("sklearn.datasets")
    data = datasets.load_digits()
    rows = read_rows()
    assert [r[:64] for r in rows] == data.data.tolist()
    assert [r[64] for r in rows] == data.target.tolist()


def test_two_halves_of_each_batch_are_the_whole():
    torch = pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    task = load(torch)
    assert (len(task.x), len(task.test_x)) == (1797 - TEST, TEST)
    assert set(task.y.tolist()) == set(range(10))
    part = torch.arange(GLOBAL_BATCH)
    assert sorted([*part[0::2].tolist(), *part[1::2].tolist()]) == part.tolist()


def test_one_rank_learns():
    torch = pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    task = load(torch)
    net = network(torch, task)
    got = learn(torch, task, net, net, 0, 1, 6, torch.device("cpu"), lambda: None, lambda s: False)
    # Chance is 0.1; nearest-neighbour methods reach 0.98 on these digits.
    assert got.accuracy > 0.9


def test_learning_stops_after_the_epoch_that_is_late():
    torch = pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    task = load(torch)
    net, seen = network(torch, task), []

    def late(taken_s: float) -> bool:
        seen.append(taken_s)
        return len(seen) == 2

    assert learn(torch, task, net, net, 0, 1, 6, torch.device("cpu"), lambda: None, late).epochs == 2
    assert seen == sorted(seen)


def test_without_scikit_learn_the_reason_is_given(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setattr(train_digits.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DigitsError, match="pip install scikit-learn"):
        read_rows()
