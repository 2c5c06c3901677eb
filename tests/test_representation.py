"""The representer: one pass of the backbone, the same draws however the input comes."""

from __future__ import annotations

import math
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

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


@pytest.mark.parametrize("sampling", ["factored", "cholesky"])
def test_statistics_are_those_of_the_operator(model, sampling):
    x = torch.randn(10, 4)
    representation = representer(model, 50, seed=3, sampling=sampling).represent(x)
    features = model.layers[:-1](x)
    want = functional.mc_statistics(
        *model.layers[-1].head_parameters(features), num_samples=50, temperature=0.8, seed=3, sampling=sampling
    )
    assert_same(representation, want, rtol=0, atol=0)
    assert not representation.mean.requires_grad
    assert representation.num_samples == 50


@pytest.mark.parametrize("sampling", ["auto", "factored", "cholesky"])
def test_statistics_are_those_of_the_samples(model, sampling):
    representation = representer(model, 600, seed=3, sampling=sampling).represent(torch.randn(10, 4))
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


def assert_samples_match(representation, **tolerances) -> None:
    samples = representation.samples()
    tolerances = tolerances or {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(representation.mean, samples.mean(0), **tolerances)
    torch.testing.assert_close(representation.variance, samples.var(0, correction=0), **tolerances)


def test_samples_match_whatever_becomes_of_the_inputs(model):
    x = torch.randn(10, 4)
    for loader in (
        DataLoader(x, batch_size=4, shuffle=True),
        DataLoader(x, batch_sampler=BatchSampler(RandomSampler(x), 3, drop_last=False)),
        iter(x.split(4)),
    ):
        assert_samples_match(representer(model, 50).represent(loader))
    representation = representer(Wrapped(model, lambda y: y, before=lambda x: x.sub_(1.0)), 50).represent(x)
    assert_samples_match(representation)


def test_pickle(model):
    representation = representer(model, 20, seed=1).represent(torch.randn(10, 4))
    copy = pickle.loads(pickle.dumps(representation))
    assert_same(copy, representation, rtol=0, atol=0)
    assert torch.equal(copy.samples(), representation.samples())


def test_the_smaller_of_features_and_parameters_is_kept():
    """So that samples() costs little memory until it is asked for."""
    for features, factors in ((4, 20), (400, 2)):
        model = nn.Sequential(nn.Linear(3, features), HeteroscedasticLayer(features, 3, factors))
        representation = representer(model, 5).represent(torch.randn(50, 3))
        call = representation._batches[0].call
        kept = [x for x in (call._features, *(call._parameters or ())) if x is not None]
        assert sum(x.numel() for x in kept) <= 50 * min(features, 3 * (factors + 2))
        assert_samples_match(representation)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_leading_dimensions(model, batch_size):
    """Each position of a sequence has noise of its own, whatever the batches."""
    x = torch.randn(1, 1, 4).expand(10, 7, 4)
    want = representer(model, 20, seed=1).represent(x)
    got = representer(model, 20, seed=1, batch_size=batch_size).represent(x)
    assert got.mean.shape == (10, 7, 3)
    assert_same(got, want, rtol=1e-5, atol=1e-6)
    assert torch.unique(got.samples()[0, ..., 0]).numel() == 70


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
    def __init__(self, model: nn.Module, wrap, before=lambda x: x) -> None:
        super().__init__()
        self.model, self.wrap, self.before = model, wrap, before

    def forward(self, x):
        return self.wrap(self.model(self.before(x)))


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

    @pytest.mark.parametrize(
        "change", [lambda y: y.mul_(10), lambda y: y.relu_(), lambda y: torch.softmax(y, -1, out=y).mul_(2)]
    )
    @pytest.mark.parametrize("inference", [False, True])
    def test_a_change_in_place(self, model, change, inference):
        changed = Wrapped(model, change)
        with pytest.warns(RuntimeWarning, match="its output is not the output"), torch.inference_mode(inference):
            representation = representer(changed, 30, seed=1).represent(torch.randn(5, 4).abs())
        assert_samples_match(representation)

    def test_a_model_that_changes_its_input(self, model):
        changed = Wrapped(model, lambda y: 2 * y, before=lambda x: x.sub_(1.0))
        with pytest.warns(RuntimeWarning):
            representation = representer(changed, 30, seed=1).represent(torch.randn(5, 4))
        assert_samples_match(representation)

    def test_active_dropout(self):
        model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), HeteroscedasticLayer(64, 3, 2))
        x = torch.randn(5, 4)
        with pytest.warns(RuntimeWarning, match="because its dropout is active"):
            first = representer(model, 200, seed=1).represent(x)
        with pytest.warns(RuntimeWarning):
            second = representer(model, 200, seed=1).represent(x)
        assert_same(first, second, rtol=0, atol=0)
        assert_samples_match(first)
        with torch.no_grad():
            model[2].diag_layer.bias.fill_(-100)
            model[2].diag_layer.weight.zero_()
            model[2].v_layer.weight.zero_()
        with pytest.warns(RuntimeWarning):
            assert representer(model, 200, seed=1).represent(x).variance.min() > 1e-4  # of the dropout alone

    def test_a_softmax_after_the_head(self, model):
        changed = Wrapped(model, lambda y: y.softmax(-1))
        message = "model: expected an output of logits, got probabilities: remove the softmax after the head"
        with pytest.warns(RuntimeWarning), pytest.raises(ValueError, match=message):
            representer(changed, 10).represent(torch.randn(4, 4))

    def test_log_probabilities_are_logits(self, model):
        x = torch.randn(4, 4)
        with pytest.warns(RuntimeWarning):
            got = representer(Wrapped(model, lambda y: y.log_softmax(-1)), 5000, seed=1).represent(x)
        want = representer(model, 5000, seed=2).represent(x)
        assert ((got.mean - want.mean).abs() < 5 * math.sqrt(2) * got.standard_error).all()

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
    assert uncertainty != quantify(representation)  # compared by identity, not tensor by tensor


def test_progress(model, capsys):
    representer(model, 5, batch_size=4, progress=True).represent(torch.randn(10, 4))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "\r4 rows\r8 rows\r10 rows\n"


@pytest.mark.parametrize(
    ("classes", "factors", "cholesky"), [(10, 10, True), (2, 3, True), (100, 15, False), (30, 2, False)]
)
def test_auto_takes_the_sampling_that_is_less_work(classes, factors, cholesky):
    model = nn.Sequential(nn.Linear(4, 8), HeteroscedasticLayer(8, classes, factors))
    x = torch.randn(3, 4)
    got = representer(model, 40, seed=1).represent(x)
    want = representer(model, 40, seed=1, sampling="cholesky" if cholesky else "factored").represent(x)
    other = representer(model, 40, seed=1, sampling="factored" if cholesky else "cholesky").represent(x)
    assert torch.equal(got.mean, want.mean)
    assert not torch.equal(got.mean, other.mean)
