"""The one-pass loss: it is F.nll_loss of mc_log_probs, values and gradients."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.nn.functional as F
from backend import native_only, not_emulated
from heads import COVARIANCES, cast, gradients, random_head
from parity import Errors

from hetnet_ext import HeteroscedasticLayer, functional, het_net, nll_loss, reference
from hetnet_ext.models import MLPClassifier

# (rows, classes, factors, samples)
SHAPES = [
    (7, 10, 10, 4), (33, 5, 2, 17), (5, 33, 7, 40), (3, 10, 10, 100), (2, 6, 3, 1300), (300, 4, 2, 3), (3, 131, 17, 21),
    (2, 140, 3, 530), (3, 531, 120, 21),
]  # fmt: skip


def split(head):
    """``mc_nll_loss`` takes the target between the scale and the factor."""
    return {"loc": head["loc"], "scale": head["scale"]}, {n: t for n, t in head.items() if n not in ("loc", "scale")}


def nll(head, target, **options):
    first, rest = split(head)
    return functional.mc_nll_loss(**first, target=target, **rest, **options)


def exact_nll(head, target, *, num_samples, seed, **options):
    return F.nll_loss(reference.mc_log_probs(**head, num_samples=num_samples, seed=seed), target, **options)


def random_target(rows: int, classes: int) -> torch.Tensor:
    target = torch.randint(classes, (rows,))
    target[1::4] = -100
    return target


@pytest.mark.parametrize("spread", [1.0, 60.0])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_parity_in_float32(covariance, shape, spread):
    rows, classes, factors, samples = shape
    errors = Errors()
    for seed in range(12):
        exact_head = random_head(covariance, rows, classes, factors)
        exact_head["loc"] = (exact_head["loc"].detach() * spread).float().double().requires_grad_()
        head, target = cast(exact_head, torch.float32), random_target(rows, classes)
        options = {"num_samples": samples, "seed": seed}
        losses = (
            nll(head, target, **options),
            exact_nll(head, target, **options),
            exact_nll(exact_head, target, **options),
        )
        errors.add("loss", *(loss.detach() for loss in losses))
        grads = [gradients(loss, h, torch.ones(())) for loss, h in zip(losses, (head, head, exact_head), strict=True)]
        for name in head:
            errors.add(f"gradient of {name}", *(gradient[name] for gradient in grads))
    errors.check()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("samples", [3, 70])
def test_options_of_nll_loss(covariance, samples, reduction, weighted):
    head = random_head(covariance, rows=9)
    target = random_target(9, 6)
    target[target == -100] = 77
    weight = torch.rand(6, dtype=torch.float64) if weighted else None
    options = {"num_samples": samples, "seed": 3, "reduction": reduction, "weight": weight, "ignore_index": 77}
    got, want = nll(head, target, **options), exact_nll(head, target, **options)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    upstream = torch.randn(want.shape, dtype=torch.float64)
    got_grads, want_grads = gradients(got, head, upstream), gradients(want, head, upstream)
    for name in head:
        torch.testing.assert_close(got_grads[name], want_grads[name], rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(nll(head, target, **options), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_gradcheck(covariance, reduction):
    head = random_head(covariance, rows=3, classes=4, factors=2)
    target = torch.tensor([1, -100, 3])

    def function(*tensors):
        return nll(dict(zip(head, tensors, strict=True)), target, num_samples=5, seed=3, reduction=reduction)

    assert torch.autograd.gradcheck(function, tuple(head.values()), fast_mode=False)


@pytest.mark.parametrize("samples", [5, 40, 700])
@pytest.mark.parametrize(("classes", "factors"), [(3, 1), (130, 1), (530, 120)])
def test_a_hopeless_target(classes, factors, samples):
    """A target whose probability underflows in every sample, far from where float32 ends."""
    loc = torch.tensor([[-1e4, 0.0, 0.5], [1.0, 0.0, 0.5]])
    loc = torch.cat((loc, torch.full((2, classes - 3), -5.0)), -1).requires_grad_()
    scale, factor = torch.ones(2, classes), torch.ones(2, classes, factors)  # the factor moves all classes alike
    target = torch.tensor([0, 0])
    loss = functional.mc_nll_loss(loc, scale, target, factor, num_samples=samples, seed=1, reduction="sum")
    loss.backward()
    assert loss.item() == pytest.approx(1e4, rel=1e-3)
    assert loc.grad[0, 0].item() == pytest.approx(-1, abs=1e-5)
    want = reference.mc_log_probs(loc.double(), scale.double(), factor.double(), num_samples=samples, seed=1)
    assert loss.item() == pytest.approx(-want[:, 0].sum().item(), rel=1e-6)


@pytest.mark.parametrize("samples", [5, 40])
def test_a_masked_target_and_rows_that_count_for_nothing(samples):
    loc = torch.randn(4, 3)
    loc[0, 1] = -math.inf
    loc[2] = math.nan
    loc.requires_grad_()
    options = {"num_samples": samples, "seed": 1}
    target = torch.tensor([1, 0, -100, 2])
    rows = functional.mc_nll_loss(loc, torch.ones(4, 3), target, reduction="none", **options)
    assert rows[0] == math.inf
    assert rows[2] == 0
    loss = functional.mc_nll_loss(loc, torch.ones(4, 3), torch.tensor([0, 0, -100, 2]), **options)
    (gradient,) = torch.autograd.grad(loss, loc)
    assert loss.isfinite()
    assert gradient.isfinite().all()
    assert not gradient[2].any()
    assert gradient[0, 1] == 0
    assert gradient[0, 0] != 0
    nothing = functional.mc_nll_loss(loc, torch.ones(4, 3), torch.full((4,), -100), **options)
    assert nothing.isnan()  # as F.nll_loss: a mean of nothing
    assert functional.mc_nll_loss(loc, torch.ones(4, 3), torch.full((4,), -100), reduction="sum", **options) == 0


@pytest.mark.parametrize("samples", [5, 40])
@pytest.mark.parametrize(("classes", "factors"), [(3, 2), (130, 3), (530, 120)])
@pytest.mark.parametrize("name", ["loc", "scale", "cov_factor", "factor_scale"])
def test_an_ignored_row_may_hold_nan(name, classes, factors, samples):
    """Its gradients are zeros, and the others' those of a batch without it."""
    head = random_head("per_row_scaled", 3, classes, factors, dtype=torch.float32)
    with torch.no_grad():
        head[name][1] = math.nan
    target = torch.tensor([0, -100, 2])
    got = gradients(nll(head, target, num_samples=samples, seed=1), head, torch.ones(()))
    fine = {n: t.detach().nan_to_num(1).double().requires_grad_() for n, t in head.items()}
    want = gradients(exact_nll(fine, target, num_samples=samples, seed=1), fine, torch.ones(()))
    for argument in head:
        torch.testing.assert_close(got[argument].double(), want[argument], rtol=1e-3, atol=1e-5)
    for argument in ("loc", "scale", "cov_factor", "factor_scale"):
        assert not got[argument][1].any()


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_leading_dimensions(batch):
    rows = math.prod(batch)
    flat = {n: t.detach() for n, t in random_head("per_row", rows=rows).items()}
    target = torch.randint(6, (rows,))
    head = {n: t if n == "temperature" else t.reshape(*batch, *t.shape[1:]) for n, t in flat.items()}
    for reduction in ("none", "mean"):
        options = {"num_samples": 5, "seed": 2, "reduction": reduction}
        want = nll(flat, target, **options)
        got = nll(head, target.reshape(batch), **options)
        assert torch.equal(got, want.reshape(batch) if reduction == "none" else want)


@pytest.mark.parametrize(("classes", "factors"), [(6, 3), (531, 120)])
def test_empty_batch(classes, factors):
    head = random_head("shared_scaled", 0, classes, factors)
    target = torch.zeros(0, dtype=torch.int64)
    assert nll(head, target, num_samples=5, reduction="none").shape == (0,)
    loss = nll(head, target, num_samples=5, reduction="sum")
    assert loss == 0
    for name, gradient in gradients(loss, head, torch.ones(())).items():
        assert gradient.shape == head[name].shape
        assert not gradient.any()


@native_only
@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize(("rows", "samples"), [(1, 5000), (3, 700), (300, 4), (50, 40)])
def test_bits_do_not_depend_on_threads(covariance, rows, samples):
    head = random_head(covariance, rows, 10, 10, dtype=torch.float32)
    target = torch.randint(10, (rows,))
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            loss = nll(head, target, num_samples=samples, seed=1)
            results.append([loss.detach(), *gradients(loss, head, torch.ones(())).values()])
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    finally:
        torch.set_num_threads(threads)


def test_retained_graph():
    head = random_head("per_row", rows=5)
    loss = nll(head, torch.arange(5), num_samples=5, seed=1)
    first = gradients_twice = [torch.autograd.grad(loss, head["loc"], retain_graph=True)[0] for _ in range(2)]
    assert torch.equal(*gradients_twice)
    scaled = torch.autograd.grad(3 * loss, head["loc"])[0]
    torch.testing.assert_close(scaled, 3 * first[0])


@native_only
@not_emulated
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_transforms(reduction):
    head = random_head("per_row", rows=3)
    target = torch.arange(3)

    def function(loc):
        return nll({**{n: t.detach() for n, t in head.items()}, "loc": loc}, target, num_samples=5, seed=1,
                   reduction=reduction).sum()  # fmt: skip

    loc = head["loc"].detach()
    want = torch.autograd.grad(function(head["loc"]), head["loc"])[0]
    torch.testing.assert_close(torch.func.grad(function)(loc), want)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.functional.hessian(function, loc)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    leaf = loc.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(compiled(leaf), leaf)[0], want)


@native_only
@pytest.mark.parametrize("with_grad", [True, False])
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_opcheck(reduction, with_grad):
    loc, factor, seed = torch.randn(4, 3), torch.randn(4, 3, 2), torch.tensor([1, 0])
    arguments = (loc, torch.ones(4, 3), factor, None, torch.tensor(1.0), seed, 5, torch.tensor([0, 1, -1, 2]),
                 torch.rand(3), None, -1, reduction, with_grad)  # fmt: skip
    # without data there are no targets to look at, so test_aot_dispatch_dynamic has none to trace
    torch.library.opcheck(
        torch.ops.hetnet_ext.mc_nll_loss.default, arguments, test_utils=("test_schema", "test_faketensor")
    )


WRONG = [
    ({"target": [0, 1]}, TypeError, "target: expected a tensor, got list"),
    ({"target": torch.zeros(4)}, TypeError, "target: expected dtype torch.int64, got torch.float32"),
    ({"target": torch.zeros(3).long()}, ValueError, "target: expected shape (4,), the shape of loc without the classes, got (3,)"),
    ({"target": torch.tensor([0, 1, 3, 0])}, ValueError, "target: expected classes 0 to 2, or ignore_index, -100, got 3"),
    ({"target": torch.tensor([0, -1, 3, 0])}, ValueError, "target: expected classes 0 to 2, or ignore_index, -100, got -1"),
    ({"reduction": "max"}, ValueError, "reduction: expected 'none', 'mean' or 'sum', got 'max'"),
    ({"weight": torch.ones(4)}, ValueError, "weight: expected shape (3,), one weight a class, got (4,)"),
    ({"weight": torch.ones(3).long()}, TypeError, "weight: expected dtype float16, bfloat16, float32 or float64, got torch.int64"),
    ({"ignore_index": 1.5}, TypeError, "ignore_index: expected an int, got float"),
]  # fmt: skip


@not_emulated
@pytest.mark.parametrize(("changes", "error", "message"), WRONG)
def test_wrong_arguments(changes, error, message):
    arguments = {"loc": torch.zeros(4, 3), "scale": torch.ones(4, 3), "target": torch.zeros(4).long(), "num_samples": 5}
    for module in (functional, reference):
        with pytest.raises(error, match=f"^{re.escape(message)}$"):
            module.mc_nll_loss(**{**arguments, **changes})


class TestModels:
    """The loss of a layer and of a whole model."""

    def test_layer(self):
        layer = HeteroscedasticLayer(8, 5, 3, temperature=0.7)
        layer.training_samples = 6
        x, target = torch.randn(4, 8), torch.arange(4)
        torch.manual_seed(1)
        want = F.nll_loss(layer(x), target)
        torch.manual_seed(1)
        torch.testing.assert_close(layer.nll_loss(x, target), want)
        options = {"num_samples": 50, "seed": 3, "reduction": "sum"}
        want = functional.mc_nll_loss(
            *layer.head_parameters(x)[:2], target, *layer.head_parameters(x)[2:], temperature=0.7, **options
        )
        torch.testing.assert_close(layer.nll_loss(x, target, **options), want)

    @pytest.mark.parametrize("is_parameter_efficient", [True, False])
    def test_model(self, is_parameter_efficient):
        model = het_net(MLPClassifier(8, 16, 3), num_factors=4, is_parameter_efficient=is_parameter_efficient)
        model.layers[-1].training_samples = 6
        x, target = torch.randn(4, 8), torch.tensor([0, 1, 2, 0])
        results = []
        for loss_of in (lambda: F.nll_loss(model(x), target), lambda: nll_loss(model, x, target)):
            model.zero_grad()
            torch.manual_seed(1)
            loss = loss_of()
            loss.backward()
            results.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-6)

    def test_inference_mode(self):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), HeteroscedasticLayer(4, 3))
        x, target = torch.randn(5, 4), torch.zeros(5).long()
        want = nll_loss(model, x, target, num_samples=10, seed=1)
        with torch.inference_mode():
            torch.testing.assert_close(nll_loss(model, x, target, num_samples=10, seed=1), want)
            with pytest.raises(ValueError, match="model: expected the output of its heteroscedastic layer"):
                nll_loss(torch.nn.Sequential(model, torch.nn.ReLU(inplace=True)), x, target, num_samples=10)

    def test_something_after_the_head(self):
        model = torch.nn.Sequential(HeteroscedasticLayer(4, 3), torch.nn.ReLU())
        with pytest.raises(ValueError, match="model: expected the output of its heteroscedastic layer as its own"):
            nll_loss(model, torch.zeros(2, 4), torch.zeros(2).long())
