"""The networks of the tests, in torch, and their export to ONNX."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import onnx
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
nn, functional = torch.nn, torch.nn.functional


def lenet() -> Any:
    """LeNet, as it was: average pools and tanh."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.Sigmoid(),
        nn.Linear(84, 10),
    )


class Block(nn.Module):  # type: ignore[misc]
    """ResNet's basic block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.short = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Any) -> Any:
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.short(x))


def resnet18(width: int = 64, classes: int = 10) -> Any:
    """ResNet-18."""
    blocks = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = width
    for stage in range(4):
        outputs = width << stage
        blocks += [Block(inputs, outputs, 2 if stage else 1), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class Inverted(nn.Module):  # type: ignore[misc]
    """MobileNetV2's inverted residual."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        layers = [nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6()] if expand != 1 else []
        layers += [nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden)]
        layers += [nn.ReLU6(), nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.layers, self.residual = nn.Sequential(*layers), stride == 1 and inputs == outputs

    def forward(self, x: Any) -> Any:
        return x + self.layers(x) if self.residual else self.layers(x)


def mobilenet_v2(width: float = 1.0, classes: int = 10) -> Any:
    """MobileNetV2; `width` scales its channels."""

    def channels(count: int) -> int:
        return max(8, int(count * width + 4) // 8 * 8)

    stages = [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]
    inputs, last = channels(32), channels(1280)
    layers = [nn.Conv2d(3, inputs, 3, 2, 1, bias=False), nn.BatchNorm2d(inputs), nn.ReLU6()]
    for expand, count, times, stride in stages:
        for i in range(times):
            layers.append(Inverted(inputs, channels(count), stride if i == 0 else 1, expand))
            inputs = channels(count)
    layers += [nn.Conv2d(inputs, last, 1, bias=False), nn.BatchNorm2d(last), nn.ReLU6(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.2), nn.Linear(last, classes))


class UNet(nn.Module):  # type: ignore[misc]
    """A UNet that goes up once by a transposed convolution, once by resizing."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()

        def double(inputs: int, outputs: int) -> Any:
            first = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
            return nn.Sequential(*first, nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU())

        self.down = nn.MaxPool2d(2)
        self.first, self.second, self.third = double(1, width), double(width, 2 * width), double(2 * width, 4 * width)
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.resize = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.fourth, self.fifth = double(4 * width, 2 * width), double(3 * width, width)
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: Any) -> Any:
        a = self.first(x)
        b = self.second(self.down(a))
        c = self.up(self.third(self.down(b)))
        c = self.resize(self.fourth(torch.cat([b, c], 1)))
        return self.out(self.fifth(torch.cat([a, c], 1)))


def audio() -> Any:
    """A 1-D network over a waveform."""
    return nn.Sequential(
        nn.Conv1d(1, 8, 16, stride=4, padding=6, bias=False),
        nn.BatchNorm1d(8),
        nn.LeakyReLU(0.1),
        nn.Conv1d(8, 16, 3, dilation=2, padding=2),
        nn.GELU(),
        nn.MaxPool1d(4),
        nn.Conv1d(16, 16, 3, groups=4, bias=False),
        nn.InstanceNorm1d(16, affine=True),
        nn.ELU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
        nn.LogSoftmax(dim=1),
    )


def volume() -> Any:
    """A 3-D network."""
    return nn.Sequential(
        nn.Conv3d(1, 6, 3, padding=1, bias=False),
        nn.BatchNorm3d(6),
        nn.SiLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(6, 8, 3, padding=1),
        nn.Hardswish(),
        nn.AvgPool3d(2),
        nn.Flatten(),
        nn.Linear(64, 3),
    )


class Encoder(nn.Module):  # type: ignore[misc]
    """A transformer's encoder layer over tokens, written out: embedding, attention, layer norms, GELU."""

    def __init__(self, tokens: int = 20, width: int = 16, heads: int = 2, length: int = 7) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(tokens, width), nn.Parameter(torch.randn(length, width) / 4)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head, self.heads = nn.Linear(width, 4), heads

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens) + self.place
        count, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(count, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attention = torch.softmax(q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5, -1)
        x = x + self.out((attention @ v).transpose(1, 2).reshape(count, length, width))
        return self.head((x + self.mlp(self.norm2(x))).mean(1))


def images(*shape: int) -> Callable[[int], Any]:
    """Inputs of that shape, so many."""
    return lambda count: torch.randn(count, *shape)


# Name -> (network, inputs by their count).
NETWORKS: dict[str, tuple[Callable[[], Any], Callable[[int], Any]]] = {
    "lenet": (lenet, images(1, 28, 28)),
    "resnet18": (lambda: resnet18(16), images(3, 64, 64)),
    "mobilenet_v2": (lambda: mobilenet_v2(0.25), images(3, 64, 64)),
    "unet": (UNet, images(1, 16, 24)),
    "audio": (audio, images(1, 256)),
    "volume": (volume, images(1, 8, 8, 8)),
    "encoder": (Encoder, lambda count: torch.randint(0, 20, (count, 7))),
}


def export(network: Any, x: Any, *, opset: int = 17) -> onnx.ModelProto:
    """The network as ONNX: input "x", output "y", weights by torch's names, a symbolic batch."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (x,),
            file,
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "N"}, "y": {0: "N"}},
            opset_version=opset,
        )
    return onnx.load_from_string(file.getvalue())
