"""The representer: one pass of the backbone, the same draws however the input comes."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hetnet_ext import HeteroscedasticLayer, functional, het_net, quantify, representer
from hetnet_ext.models import MLPClassifier

FORMS = [{"num_factors": 3}, {"num_factors": 3, "is_parameter_efficient": True}, {"num_factors": 0}]


@pytest.fixture(params=FORMS)
def model(request) -> nn.Module:
    model = het_net(MLPClassifier(4, 8, 3), temperature=0.8, **request.param)
    with torch.no_grad():
        model.layers[-1].mu_layer.weight.mul_(3)
    return model.eval()


def assert_same(a, b, **tolerances) -> None:
    for name in ("mean", "variance", "expected_entropy"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), **tolerances)


def test_statistics_are_those_of_the_operator(model):
    x = torch.randn(10, 4)
    representation = representer(model, 50, seed=3).represent(x)
    features = model.layers[:-1](x)
    want = functional.mc_statistics(
        *model.layers[-1].head_parameters(features), num_samples=50, temperature=0.8, seed=3
    )
    assert_same(representation, want, rtol=0, atol=0)
    assert not representation.mean.requires_grad
    assert representation.num_samples == 50


def test_statistics_are_those_of_the_samples(model):
    representation = representer(model, 600, seed=3).represent(torch.randn(10, 4))
    samples = representation.samples().double()
    assert samples.shape == (600, 10, 3)
    entropy = torch.special.entr(samples).sum(-1)
    close = {"rtol": 1e-5, "atol": 1e-6, "check_dtype": False}
    torch.testing.assert_close(representation.mean, samples.mean(0), **close)
    torch.testing.assert_close(representation.variance, samples.var(0, correction=0), **close)
    torch.testing.assert_close(representation.expected_entropy, entropy.mean(0), **close)
    total = torch.special.entr(samples.mean(0)).sum(-1)
    torch.testing.assert_close(representation.predictive_entropy, total, **close)
    torch.testing.assert_close(
        representation.mutual_information, total - entropy.mean(0), rtol=1e-4, atol=2e-6, check_dtype=False
    )
    torch.testing.assert_close(representation.standard_error, samples.std(0) / math.sqrt(600), **close)
    assert torch.equal(representation.samples().double(), samples)


def test_one_sample():
    model = het_net(nn.Linear(4, 3))
    representation = representer(model, 1, seed=0).represent(torch.randn(5, 4))
    assert not representation.variance.any()
    assert representation.standard_error.isinf().all()
    assert representation.mutual_information.max() < 1e-6


@pytest.mark.parametrize("batch_size", [1, 3, 10, 11])
def test_batches_do_not_matter(model, batch_size):
    x = torch.randn(10, 4)
    want = representer(model, 50, seed=3).represent(x)
    got = representer(model, 50, seed=3, batch_size=batch_size).represent(x)
    assert_same(got, want, rtol=1e-5, atol=1e-6)  # the backbone's products round differently
    torch.testing.assert_close(got.samples(), want.samples(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("labels", [True, False])
def test_data_loader(model, labels):
    x = torch.randn(10, 4)
    data = TensorDataset(x, torch.zeros(10)) if labels else x
    got = representer(model, 50, seed=3).represent(DataLoader(data, batch_size=4))
    want = representer(model, 50, seed=3).represent(x)
    assert_same(got, want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.samples(), want.samples(), rtol=1e-5, atol=1e-6)


def test_samples_of_inputs_that_cannot_be_read_again(model):
    x = torch.randn(10, 4)
    shuffled = representer(model, 5).represent(DataLoader(x, batch_size=4, shuffle=True))
    with pytest.raises(ValueError, match="samples: expected a DataLoader in a fixed order, got one that shuffles"):
        shuffled.samples()
    once = representer(model, 5).represent(iter(x.split(4)))
    with pytest.raises(ValueError, match="samples: expected inputs that can be read again, got an iterator"):
        once.samples()


def test_seeds(model):
    x = torch.randn(10, 4)
    torch.manual_seed(1)
    first, second = (representer(model, 20).represent(x).mean for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(representer(model, 20).represent(x).mean, first)
    assert not torch.equal(first, second)
    generated = [representer(model, 20, generator=torch.Generator().manual_seed(4)).represent(x).mean for _ in range(2)]
    assert torch.equal(*generated)


def test_predict_and_call(model):
    x = torch.randn(3, 4)
    maker = representer(model, 20, seed=1)
    assert torch.equal(maker.predict(x).mean, maker.represent(x).mean)
    assert torch.equal(maker(x).mean, maker.represent(x).mean)
    assert repr(maker(x)) == "HetNetRepresentation(shape=(3, 3), num_samples=20)"


def test_the_backbone_runs_once(model):
    calls = []
    model.layers[0].register_forward_hook(lambda *_: calls.append(1))
    representer(model, 500).represent(torch.randn(10, 4))
    assert len(calls) == 1


def test_it_leaves_no_trace(model):
    """Neither the layer's settings nor the global random state, where a seed is given."""
    model.layers[-1].training_samples = 4
    state = torch.get_rng_state()
    representer(model, 20, seed=1).represent(torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), state)
    assert model.layers[-1].training_samples == 4


def test_empty_input(model):
    representation = representer(model, 20).represent(torch.zeros(0, 4))
    assert representation.mean.shape == (0, 3)
    assert representation.expected_entropy.shape == (0,)
    assert representation.samples().shape == (20, 0, 3)


class Wrapped(nn.Module):
    def __init__(self, model: nn.Module, wrap) -> None:
        super().__init__()
        self.model, self.wrap = model, wrap

    def forward(self, x):
        return self.wrap(self.model(x))


class Output:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


@pytest.mark.parametrize(
    "wrap", [lambda y: (y, 1), lambda y: {"logits": y}, Output, nn.Identity(), lambda y: y.view(y.shape)]
)
def test_outputs_that_hold_the_logits(model, wrap):
    x = torch.randn(10, 4)
    got = representer(Wrapped(model, wrap), 20, seed=1).represent(x)
    assert_same(got, representer(model, 20, seed=1).represent(x), rtol=0, atol=0)


class TestFallback:
    """Models whose output is not the head's: S passes, and a warning that says why."""

    def test_something_after_the_head(self, model):
        changed = Wrapped(model, lambda y: 2 * y)
        x = torch.randn(4, 4)
        with pytest.warns(RuntimeWarning, match="runs 4000 times, because its output is not the output of its"):
            got = representer(changed, 4000, seed=1).represent(x)
        half_the_temperature = functional.mc_statistics(
            *model.layers[-1].head_parameters(model.layers[:-1](x)), num_samples=4000, temperature=0.4, seed=2
        )
        noise = 5 * math.sqrt(2) * got.standard_error
        assert ((got.mean - half_the_temperature.mean).abs() < noise).all()
        plain = representer(model, 4000, seed=1).represent(x)
        assert ((plain.mean - half_the_temperature.mean).abs() > noise).any()

    def test_its_statistics_are_those_of_its_samples(self, model):
        changed = Wrapped(model, lambda y: 2 * y)
        model.layers[-1].training_samples = 3
        with pytest.warns(RuntimeWarning):
            representation = representer(changed, 40, seed=1, batch_size=3).represent(torch.randn(10, 4))
        with pytest.warns(RuntimeWarning):
            samples = representation.samples()
        assert samples.shape == (40, 10, 3)
        assert torch.unique(samples[:, 0, 0]).numel() == 40
        torch.testing.assert_close(representation.mean, samples.mean(0))
        torch.testing.assert_close(representation.variance, samples.var(0, correction=0))
        torch.testing.assert_close(representation.expected_entropy, torch.special.entr(samples).sum(-1).mean(0))
        assert model.layers[-1].training_samples == 3

    def test_several_heads(self):
        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = HeteroscedasticLayer(4, 3), HeteroscedasticLayer(4, 3)

            def forward(self, x):
                return self.a(x) + self.b(x)

        with pytest.warns(RuntimeWarning, match="because it calls its heteroscedastic layers 2 times"):
            representer(Two(), 10).represent(torch.randn(4, 4))

    def test_no_warning_without_it(self, model):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            representer(model, 10).represent(torch.randn(4, 4))


def test_quantify(model):
    representation = representer(model, 20, seed=1).represent(torch.randn(10, 4))
    uncertainty = quantify(representation)
    assert torch.equal(uncertainty.aleatoric, representation.expected_entropy)
    assert not hasattr(uncertainty, "total")
    assert not hasattr(uncertainty, "epistemic")


def test_progress(model, capsys):
    representer(model, 5, batch_size=4, progress=True).represent(torch.randn(10, 4))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "\r4 rows\r8 rows\r10 rows\n"
