"""Whole networks: every parameter's gradient against torch autograd, from the same weights."""

from __future__ import annotations

import copy

import numpy as np
import pytest

pytest.importorskip("onnx", reason="ONNX is not installed")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
pytest.importorskip("torch", reason="torch is not installed")

import torch

from backstroke.graph import Differentiable
from tests.graph.networks import NETWORKS, export

BOUND = 1e-4  # of the norm, as the issue has it


@pytest.mark.parametrize("training", [False, True], ids=["frozen", "training"])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_torch_s(name: str, training: bool) -> None:
    make, inputs = NETWORKS[name]
    torch.manual_seed(3)
    network = make().train(training)
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # its chance is another one's: see test_dropout
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.1, 0.5)
    for parameter in network.parameters():  # no two alike, or the export makes one of them
        parameter.data += 0.05 * torch.randn_like(parameter)
    model = export(network, inputs(2))
    exact = copy.deepcopy(network).double()
    wrt = [n for n, _ in network.named_parameters()]
    x = inputs(4)
    wrt_x = ["x"] if x.is_floating_point() else []
    ours = Differentiable(model, of=["y"], wrt=[*wrt, *wrt_x], training=training)
    y = ours.forward({"x": x.numpy()})["y"]
    theirs_x = x.double().requires_grad_() if wrt_x else x
    theirs = exact(theirs_x)
    assert np.abs(y - theirs.detach().numpy()).max() < 1e-4 * max(1, theirs.abs().max().item())
    dy = torch.randn(theirs.shape)
    theirs.backward(dy.double())
    grads = ours.backward({"y": dy.numpy()})
    expected = {n: p.grad for n, p in exact.named_parameters()} | ({"x": theirs_x.grad} if wrt_x else {})
    largest = max(float(gradient.norm()) for gradient in expected.values())
    for parameter, gradient in expected.items():
        error = np.linalg.norm(grads[parameter] - gradient.numpy())
        norm = float(gradient.norm())
        if norm < 1e-12 * largest:  # it is 0 but for rounding: a bias in front of a batch normalization
            norm = largest
        assert error <= BOUND * norm, (parameter, error, norm)
