"""The models that are trained for timing: random inputs, real autograd, the same weights on every rank.

Their ratio of computation to gradient bytes differs. A linear layer of the perceptron computes with each weight once a
sample; the recurrent one uses its weights at every time step, the transformer at every token: the more often, the more
computation stands behind one byte that is exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from topocheck.tests_live.launch.training_job import TrainRow, layers_of

STEPS, FEATURES = 16, 128
"""Time steps or tokens of a sample; features of each."""
HEADS, WIDE = 4, 512


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A model and the loss of its batch, given what the batch goes through (the model, or DDP around it)."""

    net: Any
    loss: Callable[[Any], Any]


def task_of(torch: Any, row: TrainRow, rank: int, device: Any) -> Task:
    """Return a row's model, and the batch of a rank, which differs from rank to rank."""
    torch.manual_seed(1)
    # All numbers are drawn on the device: 256 MiB of weights take a core the better part of a second.
    made = torch.Generator(device=device).manual_seed(100 + rank)
    with torch.device(device):
        if row.model == "mlp":
            width, layers = layers_of(row.gradient_bytes)
            net = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
            for p in net.parameters():
                # Keeps the size of activations and gradients from layer to layer; else they vanish, and 16 bits
                # underflow.
                torch.nn.init.normal_(p, std=width**-0.5)
            shape: tuple[int, ...] = (row.batch, width)
        else:
            net, shape = (_rnn if row.model == "rnn" else _transformer)(torch), (row.batch, STEPS, FEATURES)
        x = torch.randn(*shape, generator=made)
        y = torch.randn(*shape, generator=made)

    def loss(run_on: Any) -> Any:
        return torch.nn.functional.mse_loss(run_on(x), y)

    return Task(net=net, loss=loss)


def _rnn(torch: Any) -> Any:
    """Return a GRU of one layer with a linear layer behind it."""

    class Recurrent(torch.nn.Module):  # type: ignore[misc]
        """See above."""

        def __init__(self) -> None:
            super().__init__()
            self.cell = torch.nn.GRU(FEATURES, FEATURES, batch_first=True)
            self.head = torch.nn.Linear(FEATURES, FEATURES)

        def forward(self, x: Any) -> Any:
            """Return one output a time step."""
            return self.head(self.cell(x)[0])

    return Recurrent()


def _transformer(torch: Any) -> Any:
    """Return two encoder layers, without dropout: one rank and several compute the same."""
    layer = torch.nn.TransformerEncoderLayer(FEATURES, HEADS, WIDE, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def gradient_bytes(row_model: str, asked: int) -> int:
    """Return the bytes of a model's fp32 gradients, by its layers.

    GRU: 3 gates of F inputs, F states and two biases. Encoder layer: attention 4 F F + 4 F, two linear layers
    2 F W + W + F, two norms 4 F.
    """
    f, w = FEATURES, WIDE
    if row_model == "rnn":
        return 4 * (3 * (f * f + f * f + 2 * f) + f * f + f)
    if row_model == "transformer":
        return 4 * 2 * (4 * f * f + 4 * f + 2 * f * w + w + f + 4 * f)
    width, layers = layers_of(asked)
    return 4 * width * width * layers
