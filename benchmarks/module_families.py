"""Networks of many kinds, small, for what a protection takes: tables, texts, pictures, and what people do to networks.

Each builder takes the shape of a sample and the number of outputs (those of texts the latter alone), as
`bilateral run --model module_families:NAME` calls it. Texts are token numbers (int64).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Kind = Literal["table", "text", "picture", "segmentation"]
WORDS: Final = 50
SHAPES: Final[dict[Kind, tuple[int, ...]]] = {
    "table": (12,),
    "text": (10,),
    "picture": (3, 16, 16),
    "segmentation": (3, 16, 16),
}


class TabularEmbeddings(nn.Module):
    """The first four columns are categories."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(8, 3) for _ in range(4))
        self.body = nn.Sequential(nn.Linear(12 + input_shape[0] - 4, 24), nn.ReLU(), nn.Linear(24, num_outputs))

    def forward(self, x: Tensor) -> Tensor:
        codes = (x[:, :4].abs() * 8).long().clamp(0, 7)
        embedded = [embedding(codes[:, place]) for place, embedding in enumerate(self.embeddings)]
        return cast(Tensor, self.body(torch.cat([*embedded, x[:, 4:]], dim=1)))


class Recurrent(nn.Module):
    """A text classifier by a GRU or LSTM."""

    def __init__(self, cell: type[nn.RNNBase], num_outputs: int, *, bidirectional: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        self.cell = cell(16, 16, batch_first=True, bidirectional=bidirectional)  # type: ignore[call-arg,arg-type]
        self.head = nn.Linear(32 if bidirectional else 16, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.cell(self.embedding(x))
        return cast(Tensor, self.head(states.mean(1)))


class TextTransformer(nn.Module):
    """Token and learned position embeddings, encoder layers, the mean over places."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, width: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(torch.randn(1, input_shape[0], width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder: nn.Module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.encoder(self.tokens(x) + self.places).mean(1)))


class LowRank(nn.Module):
    """A frozen Linear with a low-rank adapter beside it."""

    def __init__(self, frozen: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features) / math.sqrt(frozen.in_features))
        self.up = nn.Parameter(torch.randn(frozen.out_features, rank) * 0.01)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.frozen(x)) + x @ self.down.t() @ self.up.t()


class TiedText(nn.Module):
    """The embedding is the output layer of an inner prediction as well: one tensor, used twice."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        self.words = nn.Linear(16, WORDS, bias=False)
        self.words.weight = self.embedding.weight
        self.head = nn.Linear(WORDS, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(torch.tanh(self.words(self.embedding(x).mean(1)))))


class Block(nn.Module):
    """Attention by `F.scaled_dot_product_attention`, and an MLP, each behind a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, places, width = x.shape
        parts = self.qkv(self.first(x)).reshape(batch, places, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, places, width))
        return cast(Tensor, x + self.mlp(self.second(x)))


class VitTiny(nn.Module):
    """Patches of 4, a class token, learned positions, three blocks."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, width: int = 24) -> None:
        super().__init__()
        channels, height, side = input_shape
        self.patches = nn.Conv2d(channels, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (height // 4) * (side // 4) + 1, width) * 0.02)
        self.blocks = nn.Sequential(*[Block(width, 4) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), patches], dim=1) + self.places
        return cast(Tensor, self.head(self.norm(self.blocks(x))[:, 0]))


class AttentionPool(nn.Module):
    """`nn.MultiheadAttention` over the places of a convolution, asked by a learned query."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(input_shape[0], 16, 3, 2, 1), nn.ReLU())
        self.query = nn.Parameter(torch.randn(1, 1, 16))
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.head = nn.Linear(16, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        places = self.stem(x).flatten(2).transpose(1, 2)
        asked, _ = self.attention(self.query.expand(x.shape[0], -1, -1), places, places)
        return cast(Tensor, self.head(asked[:, 0]))


class UNet(nn.Module):
    """Two levels with skips; `dense`: a score for every place, else their mean for the picture."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, *, dense: bool = False) -> None:
        super().__init__()
        self.dense = dense
        self.down1, self.down2 = _double(input_shape[0], 8), _double(8, 16)
        self.bottom, self.up = _double(16, 32), nn.ConvTranspose2d(32, 16, 2, 2)
        self.side2, self.up1 = _double(32, 16), nn.ConvTranspose2d(16, 8, 2, 2)
        self.side1, self.scores = _double(16, 8), nn.Conv2d(8, num_outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.up(self.bottom(F.max_pool2d(second, 2)))
        x = self.up1(self.side2(torch.cat([x, second], dim=1)))
        scores = self.scores(self.side1(torch.cat([x, first], dim=1)))
        return cast(Tensor, scores if self.dense else scores.mean((2, 3)))


class TwoHeads(nn.Module):
    """A shared body and two heads, whose scores stand side by side."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(input_shape[0], 24), nn.ReLU())
        self.first, self.second = nn.Linear(24, num_outputs // 2), nn.Linear(24, num_outputs - num_outputs // 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return torch.cat([self.first(x), self.second(x)], dim=1)


class Gated(nn.Module):
    """Squeeze and excitation, gates by `F.glu`, a factor of its own for each channel."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.stem, self.gate = nn.Conv2d(input_shape[0], 16, 3, 2, 1), nn.Conv2d(16, 32, 3, 1, 1)
        self.squeeze = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 16), nn.Sigmoid())
        self.factor = nn.Parameter(torch.full((1, 16, 1, 1), 0.1))
        self.head = nn.Linear(16, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x + self.factor * F.glu(self.gate(x), dim=1)
        x = x * self.squeeze(x.mean((2, 3)))[:, :, None, None]
        return cast(Tensor, self.head(x.mean((2, 3))))


class FourierFeatures(nn.Module):
    """Random frequencies in a buffer: drawn once, never trained."""

    frequencies: Tensor

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(input_shape[0], 16))
        self.head = nn.Linear(32, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        turned = x @ self.frequencies
        return cast(Tensor, self.head(torch.cat([turned.sin(), turned.cos()], dim=1)))


def _double(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU(), nn.Conv2d(outputs, outputs, 1)
    )


def dense_unet(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return UNet(input_shape, num_outputs, dense=True)


def tabular_mlp(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(input_shape[0], 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, num_outputs)
    )


def gru_text(num_outputs: int) -> nn.Module:
    return Recurrent(nn.GRU, num_outputs)


def lstm_text(num_outputs: int) -> nn.Module:
    return Recurrent(nn.LSTM, num_outputs, bidirectional=True)


def conv_text(num_outputs: int) -> nn.Module:
    return _ConvText(num_outputs)


class _ConvText(nn.Module):
    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.embedding, self.conv = nn.Embedding(WORDS, 16), nn.Conv1d(16, 24, 3)
        self.head = nn.Linear(24, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(F.relu(self.conv(self.embedding(x).transpose(1, 2))).amax(2)))


def lora_transformer(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """Of the Transformer only adapters of projections and feed-forward layers train, and the head."""
    model = TextTransformer(input_shape, num_outputs)
    model.encoder = nn.Sequential(Block(16, 4), Block(16, 4))
    model.requires_grad_(False)
    for block in list(model.encoder.modules()):
        for name, layer in list(block.named_children()):
            if isinstance(layer, nn.Linear) and name != "out":
                setattr(block, name, LowRank(layer))
    model.head.requires_grad_(True)
    return model


def fully_convolutional(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, num_outputs, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def frozen_body(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """A backbone that stays as it came, BatchNorm in evaluation mode, and a head that trains."""
    body = nn.Sequential(nn.Conv2d(input_shape[0], 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    model = nn.Sequential(body.requires_grad_(False), nn.Flatten(), nn.Linear(16, num_outputs)).train()
    body[1].eval()
    return model


def weight_normed(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    first = nn.utils.parametrizations.weight_norm(nn.Linear(input_shape[0], 24))
    return nn.Sequential(first, nn.ReLU(), nn.Linear(24, num_outputs))


def tied_text(num_outputs: int) -> nn.Module:
    return TiedText(num_outputs)


def batch_normed(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 16, 3, 2, 1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, num_outputs),
    )


@dataclass(frozen=True)
class Family:
    """A network by the name of its builder here."""

    builder: str
    kind: Kind

    @property
    def shape(self) -> tuple[int, ...]:
        return SHAPES[self.kind]

    def build(self, num_outputs: int) -> nn.Module:
        make: Callable[..., nn.Module] = globals()[self.builder]
        takes_shape = self.builder not in ("gru_text", "lstm_text", "conv_text", "tied_text")
        return make(self.shape, num_outputs) if takes_shape else make(num_outputs)


FAMILIES: Final[dict[str, Family]] = {
    "tabular MLP": Family("tabular_mlp", "table"),
    "table with embeddings": Family("TabularEmbeddings", "table"),
    "two heads": Family("TwoHeads", "table"),
    "random features in a buffer": Family("FourierFeatures", "table"),
    "weight normalisation": Family("weight_normed", "table"),
    "GRU text classifier": Family("gru_text", "text"),
    "LSTM, both directions": Family("lstm_text", "text"),
    "text CNN": Family("conv_text", "text"),
    "Transformer encoder": Family("TextTransformer", "text"),
    "LoRA on a Transformer": Family("lora_transformer", "text"),
    "tied embedding": Family("tied_text", "text"),
    "ViT-tiny": Family("VitTiny", "picture"),
    "attention pooling": Family("AttentionPool", "picture"),
    "U-Net": Family("UNet", "picture"),
    "U-Net, a class for each pixel": Family("dense_unet", "segmentation"),
    "fully convolutional": Family("fully_convolutional", "picture"),
    "gates": Family("Gated", "picture"),
    "frozen body": Family("frozen_body", "picture"),
    "BatchNorm": Family("batch_normed", "picture"),
}
