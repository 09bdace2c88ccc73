"""The private step: whose the objects are, what is released, and that its parts do as they say."""

import copy
import json
from typing import Any

import datasets
import pytest
import torch
from torch import Tensor, nn

import plumbline as pl
from plumbline.gradients.errors import RecordsMixError
from plumbline.training import BatchRefused, BudgetSpent
from plumbline.training.looping import RunFinished
from plumbline.training.step_losses import BadRecords
from tests.training.small import (
    LOSS,
    RECORDS,
    budget,
    clipped_sum,
    data,
    gradient_of,
    network,
    noise_of,
    private,
    run,
    weights,
)

ROUNDING = {"rtol": 1e-5, "atol": 1e-6}  # float32 sums in another order


class TestTheUsersObjects:
    def test_model_and_optimizer_stay_what_they_are(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        keys, parameters = list(model.state_dict()), list(model.parameters())
        attributes = sorted(vars(model)), [sorted(vars(module)) for module in model.modules()]
        mine = private(model, optimizer=optimizer)
        run(mine)
        assert mine.model is model
        assert mine.optimizer is optimizer
        assert type(model) is nn.Sequential
        assert type(optimizer) is torch.optim.SGD
        assert list(model.state_dict()) == keys
        assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
        assert (
            sorted(vars(model)),
            [sorted(vars(module)) for module in model.modules()],
        ) == attributes
        assert not any(module._forward_hooks for module in model.modules())
        assert all(type(p) is nn.Parameter and p.is_leaf for p in model.parameters())

    def test_grad_is_as_before(self) -> None:
        model = network()
        first, *rest = model.parameters()
        first.grad = torch.full_like(first, 3.0)
        mine = first.grad
        run(private(model))
        assert first.grad is mine
        assert torch.equal(mine, torch.full_like(first, 3.0))
        assert all(p.grad is None for p in rest)

    def test_frozen_parameters_stay(self) -> None:
        model = network()
        model[0].requires_grad_(False)
        before = copy.deepcopy(model.state_dict())
        run(private(model))
        assert torch.equal(model[0].weight, before["0.weight"])
        assert not torch.equal(model[2].weight, before["2.weight"])

    def test_a_frozen_parameters_own_gradient_is_not_applied(self) -> None:
        model = network()
        LOSS(model(data()[0]), data()[1]).sum().backward()
        model[0].requires_grad_(False)
        before, own = model[0].weight.detach().clone(), model[0].weight.grad
        run(private(model))
        assert torch.equal(model[0].weight, before)
        assert model[0].weight.grad is own

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_weights_of_few_digits_are_refused(self, dtype: torch.dtype) -> None:
        with pytest.raises(ValueError, match=rf"'0\.weight' is of type {dtype}.*model\.float"):
            private(network().to(dtype))
        frozen = network()
        frozen[0].to(dtype).requires_grad_(False)
        private(frozen)

    @pytest.mark.parametrize("change", ["frozen", "freed", "replaced"])
    def test_other_parameters_are_refused_before_anything_is_charged(self, change: str) -> None:
        model = network()
        model[0].bias.requires_grad_(change != "freed")
        mine = private(model)
        run(mine, 2)
        if change == "replaced":
            model[0] = nn.Linear(6, 5)
        else:
            model[0].bias.requires_grad_(change == "freed")
        with pytest.raises(RuntimeError, match=r"'0\..*' was frozen, freed or replaced.*new run"):
            run(mine)
        assert mine.charged == 2

    @pytest.mark.parametrize(
        ("given", "error", "message"),
        [
            ({"method": "dpsgd"}, TypeError, r"'dpsgd'; .* plumbline\.methods\.dpsgd\(\)"),
            ({"method": pl.methods.bam}, TypeError, r"the function bam; .* plumbline.methods.bam"),
            ({"ledger": "a.ledger"}, TypeError, r"plumbline.Ledger.open\('a.ledger'\)"),
            ({"sensitive_features": ["F", "M"]}, TypeError, "has words; .*factorize"),
            ({"dataset": ([1, 2], [0, 1])}, TypeError, "a tuple of 2 lists"),
        ],
        ids=["name", "function", "path", "words", "lists"],
    )
    def test_common_slips(self, given: dict[str, Any], error: type, message: str) -> None:
        with pytest.raises(error, match=message):
            private(**given)

    def test_a_model_without_trainable_parameters(self) -> None:
        with pytest.raises(ValueError, match=r"no trainable parameter.*requires_grad_"):
            private(network().requires_grad_(False))

    def test_training_mode_is_as_before(self) -> None:
        model = network()
        model[1].eval()
        run(private(model))
        assert [module.training for module in model] == [True, False, True]

    @pytest.mark.parametrize(
        "kind",
        [
            torch.optim.SGD,
            torch.optim.Adam,
            torch.optim.AdamW,
            torch.optim.NAdam,
            torch.optim.RMSprop,
            torch.optim.Adagrad,
        ],
    )
    def test_any_dense_optimizer_steps(self, kind: Any) -> None:
        model = network()
        before = weights(model)
        optimizer = kind(model.parameters(), lr=0.1)
        run(private(model, optimizer=optimizer))
        assert torch.isfinite(weights(model)).all()
        assert not torch.equal(weights(model), before)

    def test_a_scheduler_works(self) -> None:
        # With a learning rate of 0 from the second step on, only the first moves the weights.
        models = network(), network()
        for model, steps in zip(models, (1, 4), strict=True):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step == 0))
            mine = private(model, optimizer=optimizer)
            for _, batch in zip(range(steps), mine, strict=False):
                mine.step(batch)
                schedule.step()
        assert torch.equal(weights(models[0]), weights(models[1]))

    def test_momentum_is_the_optimizers(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        mine = private(model, optimizer=optimizer)
        speed = torch.zeros_like(weights(model))
        for _ in range(2):
            before = weights(model)
            run(mine, 1)
            assert mine.released is not None
            released = torch.cat([part.flatten() for part in mine.released.values()])
            speed = 0.9 * speed + released
            torch.testing.assert_close(weights(model), before - 0.5 * speed)
        assert len(optimizer.state) == 4

    @pytest.mark.parametrize(
        ("kind", "reason"),
        [
            (torch.optim.LBFGS, "evaluates the loss several times"),
            (torch.optim.SparseAdam, "needs sparse gradients"),
        ],
    )
    def test_optimizers_that_cannot_be_private_are_refused(self, kind: Any, reason: str) -> None:
        model = network()
        with pytest.raises(ValueError, match=f"{kind.__name__} {reason}.*Use SGD"):
            private(model, optimizer=kind(list(model.parameters())))

    def test_an_optimizer_that_misses_a_parameter_is_refused(self) -> None:
        model = network()
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
        with pytest.raises(ValueError, match=r"'2\.weight' \(2 in all\)"):
            private(model, optimizer=optimizer)
        model[2].requires_grad_(False)
        private(model, optimizer=optimizer)

    def test_the_method_is_the_runs_own(self) -> None:
        method = pl.methods.global_adapt(clip=0.5)
        mine = private(method=method)
        for batch in mine:
            mine.step(batch)
        assert mine.method.clipping.bound != 50  # type: ignore[attr-defined]
        assert method.clipping.bound == 50  # type: ignore[attr-defined]
        assert mine.method.name == "global_adapt"

    @pytest.mark.parametrize("given", [0, -3, 2.5, True])
    def test_a_physical_batch_must_be_a_count(self, given: Any) -> None:
        with pytest.raises(ValueError, match="max_physical_batch is"):
            private(max_physical_batch=given)

    def test_sensitive_features_and_user_ids_are_one_for_each_record(self) -> None:
        with pytest.raises(ValueError, match=r"shape \(3,\).*40 records"):
            private(sensitive_features=[0, 1, 0])
        with pytest.raises(ValueError, match="3 entries for 40 records"):
            private(user_ids=[0, 1, 0])


class TestTheStep:
    def test_the_release_is_the_noisy_clipped_sum_over_the_expected_size(self) -> None:
        model = network()
        before = copy.deepcopy(model)
        mine = private(model, lr=1.0, seed=5)
        (indices,) = run(mine, 1)
        assert len(indices) != 10  # the realised size differs, and must not be divided by
        total = clipped_sum(before, data(), list(indices[:, None]), 0.5)
        expected = weights(before) - (total + 0.5 * noise_of(mine, 0).float()) / 10
        torch.testing.assert_close(weights(model), expected, **ROUNDING)

    def test_a_batch_is_stepped_on_once(self) -> None:
        mine = private()
        batch = next(iter(mine))
        mine.step(batch)
        with pytest.raises(BatchRefused, match="stepped on already"):
            mine.step(batch)
        assert mine.steps_done == 1

    def test_a_batch_of_another_run_is_refused(self) -> None:
        mine, other = private(), private()
        next(iter(mine))
        with pytest.raises(BatchRefused, match="not drawn by this object's sampler"):
            mine.step(next(iter(other)))
        with pytest.raises(BatchRefused):
            mine.step(data())  # type: ignore[arg-type]

    def test_a_batch_from_before_is_refused(self) -> None:
        mine = private()
        old = next(iter(mine))
        new = next(iter(mine))
        with pytest.raises(BatchRefused):
            mine.step(old)
        mine.step(new)

    def test_the_run_ends_with_its_budget(self) -> None:
        mine = private()
        assert len(mine) == 4
        run(mine)
        assert len(mine) == 0
        with pytest.warns(RunFinished, match="All 4 steps"):
            assert list(mine) == []
        assert mine.epsilon() == pytest.approx(mine.plan.epsilon)
        with pytest.raises(BudgetSpent, match="4 steps are charged of the 4"):
            mine.step(None)  # type: ignore[arg-type]

    def test_a_batch_that_was_passed_over_is_drawn_again(self) -> None:
        mine = private()
        first = next(iter(mine))
        again = next(iter(mine))
        assert torch.equal(first.indices, again.indices)
        assert again.step == 0

    def test_an_empty_batch_is_a_step_of_noise_only(self) -> None:
        model = network()
        before = weights(model)
        # A sampling rate so small that the batches of this seed are empty.
        mine = private(model, lr=1.0, plan=budget(expected_batch_size=None, sampling_rate=1e-6))
        batches = run(mine)
        assert [len(batch) for batch in batches] == [0, 0, 0, 0]
        noise = sum(noise_of(mine, step) for step in range(4))
        torch.testing.assert_close(weights(model), before - 0.5 * noise.float(), **ROUNDING)
        assert mine.steps_done == 4
        assert mine.charged == 4

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
    def test_bad_records_contribute_zero(self, bad: float) -> None:
        x, y = data()
        poisoned = x.clone()
        poisoned[::3] = bad
        full = budget(expected_batch_size=RECORDS)
        one, other = network(), network()
        run(private(one, (poisoned, y), plan=full), 1)
        assert torch.isfinite(weights(one)).all()
        if bad == 1e30:
            return  # finite: it is clipped, not left out
        kept = torch.tensor([i for i in range(RECORDS) if i % 3])
        start = copy.deepcopy(other)
        total = clipped_sum(start, data(), list(kept[:, None]), 0.5)
        mine = private(other, (poisoned, y), plan=full, lr=1.0)
        run(mine, 1)
        expected = weights(start) - (total + 0.5 * noise_of(mine, 0).float()) / RECORDS
        torch.testing.assert_close(weights(other), expected, **ROUNDING)

    def test_a_batch_of_bad_records_only(self) -> None:
        x, y = data()
        model = network()
        with pytest.warns(BadRecords):
            run(private(model, (torch.full_like(x, float("nan")), y)))
        assert torch.isfinite(weights(model)).all()

    def test_a_model_that_mixes_records_is_refused_before_anything_is_charged(self) -> None:
        model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        before = copy.deepcopy(model.state_dict())
        mine = private(model)
        with pytest.raises(RecordsMixError, match=r"'1' \(BatchNorm1d\).*suggest_fixes"):
            run(mine)
        assert mine.charged == 0
        assert mine.epsilon() == 0
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name

    def test_a_mean_over_the_batch_is_one_over_the_record(self) -> None:
        class Mixing(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding = nn.Embedding(3, 2)

            def forward(self, x: Tensor) -> Tensor:
                values = self.embedding(x)
                return values * values.mean()

        x = torch.arange(RECORDS) % 3
        mine = private(Mixing(), (x, torch.zeros(RECORDS, dtype=torch.long)))
        assert mine.audit_neighbours(steps=1, records=16).holds
        run(mine)
        assert mine.steps_done == mine.plan.steps

    def test_runs_of_one_seed_share_no_noise_if_only_the_rate_differs(self) -> None:
        one, other = private(lr=0.1), private(lr=0.2)
        assert not torch.equal(noise_of(one, 0), noise_of(other, 0))
        assert torch.equal(noise_of(one, 0), noise_of(private(lr=0.1), 0))

    @pytest.mark.parametrize("seed", [7, None])
    def test_dropout_masks_are_the_runs_own(self, seed: int | None) -> None:
        """Not those of torch's generator, whose seed is often no secret."""

        def released() -> Tensor:
            model = nn.Sequential(nn.Dropout(0.5), network())
            plan = budget(expected_batch_size=RECORDS, noise_multiplier=1e-9)
            torch.manual_seed(11)
            mine = private(model, plan=plan, seed=seed)
            run(mine, 1)
            assert mine.released is not None
            return torch.cat([part.flatten() for part in mine.released.values()])

        same = torch.allclose(released(), released(), atol=1e-6)
        assert same == (seed is not None)


class TestChunks:
    @pytest.mark.parametrize("most", [1, 3, 7, 1000])
    def test_chunks_equal_one_batch(self, most: int) -> None:
        whole, parts = network(), network()
        run(private(whole))
        run(private(parts, max_physical_batch=most))
        torch.testing.assert_close(weights(parts), weights(whole), **ROUNDING)

    @pytest.mark.parametrize("most", [None, 3])
    def test_also_after_a_break(self, most: int | None) -> None:
        whole, broken = network(), network()
        run(private(whole))
        mine = private(broken, max_physical_batch=most)
        for turn in range(7):
            for batch in mine:
                if turn % 2:  # a batch that is left without a step
                    next(batch.chunks(), None)
                    break
                mine.step(batch)
                break
        assert len(mine) == 0
        torch.testing.assert_close(weights(broken), weights(whole), **ROUNDING)

    def test_no_chunk_is_larger_than_allowed(self) -> None:
        mine = private(max_physical_batch=3)
        batch = next(iter(mine))
        sizes = [chunk.units for chunk in batch.chunks()]
        assert max(sizes) <= 3
        assert sum(sizes) == len(batch)
        assert torch.equal(torch.cat([chunk.indices for chunk in batch.chunks()]), batch.indices)


class TestSeveralInOneLoop:
    def test_two_private_models_do_not_disturb_each_other(self) -> None:
        alone = network(2), network(3)
        for model, seed in zip(alone, (7, 8), strict=True):
            run(private(model, seed=seed))
        together = network(2), network(3)
        runs = [private(model, seed=seed) for model, seed in zip(together, (7, 8), strict=True)]
        for batches in zip(*runs, strict=True):
            for mine, batch in zip(runs, batches, strict=True):
                mine.step(batch)
        for one, other in zip(alone, together, strict=True):
            assert torch.equal(weights(one), weights(other))

    def test_both_are_charged_to_one_ledger(self, tmp_path: Any) -> None:
        with pl.Ledger.open(tmp_path / "ledger") as ledger:
            one = private(network(2), seed=7, ledger=ledger)
            other = private(network(3), seed=8, ledger=ledger)
            for first, second in zip(one, other, strict=True):
                one.step(first)
                other.step(second)
            both = ledger.epsilon(1e-3)
            assert sum(count for _, count in ledger.entries()) == 8
            assert both > one.epsilon()
            assert both == pytest.approx(private(plan=budget(steps=8)).plan.epsilon)

    def test_a_generator_beside_a_private_discriminator(self) -> None:
        """A GAN: the discriminator sees real records privately, the generator sees none."""
        generator = nn.Linear(3, 6)
        discriminator = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1))
        real = data()[0]

        @pl.batch_loss
        def telling_apart(model: nn.Module, batch: Tensor) -> Tensor:
            fake = generator(torch.ones(len(batch), 3))
            return nn.functional.softplus(-model(batch)[:, 0]) + nn.functional.softplus(
                model(fake)[:, 0]
            )

        mine = private(
            discriminator,
            real,
            loss=telling_apart,
            optimizer=torch.optim.Adam(discriminator.parameters(), lr=0.05),
        )
        own = torch.optim.Adam(generator.parameters(), lr=0.05)
        for batch in mine:
            before = weights(generator)
            grads = [None if p.grad is None else p.grad.clone() for p in generator.parameters()]
            mine.step(batch)
            assert torch.equal(weights(generator), before)
            for p, grad in zip(generator.parameters(), grads, strict=True):
                assert (p.grad is None) == (grad is None)
                assert grad is None or torch.equal(p.grad, grad)
            own.zero_grad()
            nn.functional.softplus(-discriminator(generator(torch.randn(5, 3)))).mean().backward()
            own.step()
            assert not torch.equal(weights(generator), before)
        assert mine.steps_done == 4


class TestUsers:
    # 10 users with 1 to 7 records, scattered.
    IDS = torch.tensor([(i * i) % 10 if i % 2 else i % 7 for i in range(RECORDS)])

    def test_a_users_records_are_pooled_before_clipping(self) -> None:
        model = network()
        before = copy.deepcopy(model)
        users = len(self.IDS.unique())
        mine = private(
            model, lr=1.0, user_ids=self.IDS, plan=budget(expected_batch_size=users // 2)
        )
        (indices,) = run(mine, 1)
        present = self.IDS[indices].unique()
        assert 0 < len(present) < users
        groups = [torch.eq(self.IDS, user).nonzero()[:, 0] for user in present]
        assert sorted(indices.tolist()) == sorted(torch.cat(groups).tolist())  # all of a user's
        sizes = [float(gradient_of(before, *(t[g] for t in data())).norm()) for g in groups]
        assert max(sizes) > 0.5  # clipping has something to do
        total = clipped_sum(before, data(), groups, 0.5)
        expected = weights(before) - (total + 0.5 * noise_of(mine, 0).float()) / (users // 2)
        torch.testing.assert_close(weights(model), expected, **ROUNDING)

    @pytest.mark.parametrize("most", [1, 4, 9])
    def test_chunks_keep_users_whole(self, most: int) -> None:
        models = network(), network()
        for model, size in zip(models, (None, most), strict=True):
            plan = budget(expected_batch_size=5)
            run(private(model, user_ids=self.IDS, plan=plan, max_physical_batch=size))
        torch.testing.assert_close(weights(models[1]), weights(models[0]), **ROUNDING)

    def test_the_statement_is_about_users(self) -> None:
        names = [f"user {number}" for number in self.IDS.tolist()]
        mine = private(user_ids=names, plan=budget(expected_batch_size=5))
        assert mine.plan.records == len(set(names))
        run(mine)
        facts = json.loads(mine.statement("json"))
        assert facts["unit"] == "user"
        assert facts["records"] == len(set(names))
        assert "with all of that user's records" in " ".join(mine.statement().split())


class TestTheStatement:
    def test_says_whether_n_is_treated_as_public(self) -> None:
        taken = private()
        given = private(plan=budget(records=50))
        assert not json.loads(taken.statement("json"))["records_public"]
        assert "taken from the data itself and is treated as public" in " ".join(
            taken.statement().split()
        )
        assert given.plan.records == 50
        assert given.plan.sampling_rate == 10 / 50
        assert json.loads(given.statement("json"))["records_public"]
        assert "was stated to be public knowledge" in " ".join(given.statement().split())

    def test_follows_the_steps(self) -> None:
        mine = private()
        assert "No step has been taken yet" in mine.statement()
        run(mine, 2)
        facts = json.loads(mine.statement("json"))
        assert facts["steps_done"] == 2
        assert facts["steps_planned"] == 4
        assert facts["epsilon"] == mine.epsilon(exact=True) <= mine.epsilon()

    def test_says_that_a_seed_was_used(self) -> None:
        mine = private()
        run(mine)
        text = " ".join(mine.statement().split())
        assert "but only from people who do not know its seed" in text
        assert "The run used a seed" in text
        secure = private(seed=None)
        run(secure)
        assert "The run used a seed" not in " ".join(secure.statement().split())
        assert "never stored" in secure.statement()

    def test_a_run_without_noise_has_no_guarantee(self) -> None:
        mine = private(method=pl.methods.clipped_only(0.5))
        run(mine)
        assert mine.epsilon() == float("inf")
        assert "no differential privacy guarantee" in " ".join(mine.statement().split())

    def test_an_unknown_format_is_refused(self) -> None:
        with pytest.raises(ValueError, match="'xml'; it must be 'text' or 'json'"):
            private().statement("xml")


class TestRandomness:
    def test_seeded_runs_repeat_themselves(self) -> None:
        models = network(), network()
        batches = [run(private(model)) for model in models]
        for one, other in zip(*batches, strict=True):
            assert torch.equal(one, other)
        assert torch.equal(weights(models[0]), weights(models[1]))

    def test_another_seed_gives_other_batches_and_noise(self) -> None:
        models = network(), network()
        batches = [run(private(m, seed=s)) for m, s in zip(models, (7, 8), strict=True)]
        assert not all(map(torch.equal, *batches))
        assert not torch.equal(weights(models[0]), weights(models[1]))

    def test_secure_runs_differ(self) -> None:
        models = network(), network()
        for model in models:
            # Every record in every step: what differs is the noise.
            run(private(model, seed=None, plan=budget(expected_batch_size=RECORDS)))
        assert not torch.equal(weights(models[0]), weights(models[1]))

    def test_the_users_generator_is_left_alone(self) -> None:
        mine = private()
        state = torch.get_rng_state()
        run(mine)
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.filterwarnings("ignore:The loss of every record")  # on purpose
    def test_noise_is_that_of_the_step(self) -> None:
        # Zero gradients everywhere: what moves the weights is the noise alone.
        model = network()
        zero = pl.batch_loss(lambda m, batch: 0 * LOSS(m(batch[0]), batch[1]))
        mine = private(model, loss=zero, lr=1.0)
        moves = []
        for batch in mine:
            before = weights(model)
            mine.step(batch)
            moves.append(before - weights(model))
        for step, move in enumerate(moves):
            expected = 0.5 * noise_of(mine, step).float() / 10
            torch.testing.assert_close(move, expected, rtol=1e-4, atol=1e-6)


class TestDataSets:
    def test_named_columns_train(self) -> None:
        class Named(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(6, 2)

            def forward(self, x: Tensor) -> Tensor:
                return self.linear(x)

        x, y = data()
        model = Named()
        before = weights(model)
        run(private(model, {"x": x, "labels": y}))
        assert not torch.equal(weights(model), before)

    def test_a_hugging_face_data_set_trains_alike(self) -> None:
        class Named(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x)

        x, y = data()
        table = datasets.Dataset.from_dict({"x": x.tolist(), "labels": y.tolist()})
        models = [Named(6, 2), Named(6, 2)]
        models[1].load_state_dict(models[0].state_dict())
        run(private(models[0], table.with_format("torch")))
        run(private(models[1], {"x": x, "labels": y}))
        assert torch.equal(weights(models[0]), weights(models[1]))

    def test_a_data_set_read_record_by_record_gives_the_same(self) -> None:
        models = network(), network()
        x, y = data()
        run(private(models[0], (x, y)))
        run(private(models[1], [(x[i], y[i]) for i in range(RECORDS)]))
        torch.testing.assert_close(weights(models[0]), weights(models[1]), **ROUNDING)


def test_a_batch_that_is_passed_over_is_refused() -> None:
    batches = iter(private(network()))
    next(batches)
    with pytest.raises(BatchRefused, match=r"passed over.*break"):
        next(batches)
