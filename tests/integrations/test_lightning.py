"""``PrivateStrategy`` on the real library: the same run as a plain loop, charged as one."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

import plumbline as pl

lightning = pytest.importorskip("lightning")

from lightning.pytorch import callbacks as named  # noqa: E402
from lightning.pytorch.callbacks import (  # noqa: E402
    BaseFinetuning,
    Callback,
    DeviceStatsMonitor,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
    ThroughputMonitor,
)
from lightning.pytorch.utilities import CombinedLoader  # noqa: E402

from plumbline.gradients import CaptureError  # noqa: E402
from plumbline.integrations.lightning import PrivateStrategy  # noqa: E402
from plumbline.integrations.lightning_refusals import _ALLOWED  # noqa: E402
from plumbline.training import WeightsMoved  # noqa: E402

EPOCHS, EPOCH_STEPS, BATCH = 3, 4, 6
METHOD = pl.methods.dpsgd(clip=1.0)


# What Lightning says of small examples, and of a function of torch's that it calls.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{message}")
    for message in (
        "You defined a `validation_step` but have no",
        "The '.*_dataloader' does not have many workers",
        "The number of training batches",
        ".*treespec, LeafSpec",
        "Be aware that when using `ckpt_path`",
        "Checkpoint directory .* exists and is not empty",
        "You are using the `dataloader_iter` step flavor",
        "Found `dataloader_iter` argument",
    )
]


class Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 2))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y, reduction="none")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def records() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH * EPOCH_STEPS, 3, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def loader(**settings: Any) -> DataLoader[Any]:
    return DataLoader(records(), **{"batch_size": BATCH, "shuffle": True, **settings})


def strategy(**settings: Any) -> PrivateStrategy:
    return PrivateStrategy(
        **{"method": METHOD, "delta": 1e-3, "noise_multiplier": 1.0, "seed": 3, **settings}
    )


def trainer(folder: Path, private: PrivateStrategy | None = None, **settings: Any) -> Any:
    given = {
        "max_epochs": EPOCHS,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "logger": False,
        "accelerator": "cpu",
        "devices": 1,
        **settings,
    }
    own = strategy() if private is None else private
    return lightning.Trainer(default_root_dir=folder, strategy=own, **given)


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


class Seen(Callback):
    """What callbacks are shown, and when."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop = stop
        self.batches: list[Any] = []
        self.epsilons: list[float] = []

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, i: int
    ) -> None:
        self.batches.append(batch)
        self.epsilons.append(float(trainer.callback_metrics["epsilon"]))
        if trainer.global_step == self.stop:
            raise KilledError


class KilledError(Exception):
    pass


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = trainer(tmp_path_factory.mktemp("whole"), callbacks=[Seen()])
    made.fit(Module(), loader(), DataLoader(records(), batch_size=BATCH))
    return made


def test_the_weights_are_those_of_a_plain_loop(whole: Any) -> None:
    module = Module()
    made = module.configure_optimizers()

    def losses(model: Any, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model.net(batch[0]), batch[1], reduction="none")

    private = pl.make_private(
        module,
        made["optimizer"],
        records(),
        loss=pl.batch_loss(losses),
        method=METHOD,
        budget=pl.Budget(
            noise_multiplier=1.0, delta=1e-3, steps=EPOCHS * EPOCH_STEPS, expected_batch_size=BATCH
        ),
        seed=3,
        schedulers=[made["lr_scheduler"]["scheduler"]],
    )
    for batch in private:
        private.step(batch)
    assert not torch.equal(weights(module), weights(Module()))
    assert torch.allclose(weights(module), weights(whole.lightning_module), rtol=1e-5, atol=1e-7)


def test_the_trainer_counts_logs_and_validates_and_is_shown_no_record(whole: Any) -> None:
    private = whole.strategy.private
    (seen,) = (one for one in whole.callbacks if isinstance(one, Seen))
    assert whole.global_step == private.made == EPOCHS * EPOCH_STEPS
    assert whole.current_epoch == EPOCHS
    assert seen.batches == [*range(EPOCH_STEPS)] * EPOCHS
    assert seen.epsilons == sorted(seen.epsilons)
    assert seen.epsilons[-1] == pytest.approx(private.epsilon())
    assert set(whole.callback_metrics) == {"epsilon", "val_loss"}
    assert whole.lightning_module.automatic_optimization  # as it was


def test_a_killed_run_goes_on_with_the_step_after_the_last_and_is_charged_once(
    whole: Any, tmp_path: Path
) -> None:
    """Killed at step 7; Lightning's own checkpoint is of step 4, and the run's file of step 0."""
    steps = EPOCHS * EPOCH_STEPS
    settings = {"checkpoint": tmp_path / "run.pt"}
    saving = {
        "enable_checkpointing": True,
        "callbacks": [Seen(stop=7), ModelCheckpoint(tmp_path / "kept")],
    }
    with pl.Ledger.open(tmp_path / "ledger") as ledger:
        killed = trainer(tmp_path, strategy(ledger=ledger, **settings), **saving)
        with pytest.raises(KilledError):
            killed.fit(Module(), loader())
        run = killed.strategy.private.run
        assert ledger.charged(run) == 7
    (kept,) = tmp_path.glob("kept/*.ckpt")
    with pl.Ledger.open(tmp_path / "ledger") as ledger:
        resumed = trainer(tmp_path, strategy(ledger=ledger, **settings))
        module = Module()
        resumed.fit(module, loader(), ckpt_path=kept)
        assert ledger.charged(run) == steps
    assert resumed.global_step == resumed.strategy.private.made == steps
    assert torch.allclose(weights(module), weights(whole.lightning_module), rtol=1e-5, atol=1e-7)
    # Once more, without Lightning's checkpoint: all of its steps are made, and passed over.
    with pl.Ledger.open(tmp_path / "ledger") as ledger:
        again = trainer(tmp_path, strategy(ledger=ledger, **settings))
        again.fit(Module(), loader())
        assert ledger.charged(run) == steps
    assert again.global_step == steps
    assert torch.equal(weights(again.lightning_module), weights(module))


def test_what_was_spent_cannot_be_forgotten(tmp_path: Path) -> None:
    saving = {"enable_checkpointing": True, "callbacks": [ModelCheckpoint(tmp_path / "kept")]}
    made = trainer(tmp_path, max_steps=2, max_epochs=-1, **saving)
    made.fit(Module(), loader())
    assert made.strategy.private.plan.steps == 2
    with pytest.raises(ValueError, match="has made its run"):
        made.fit(Module(), loader())
    (kept,) = tmp_path.glob("kept/*.ckpt")
    with pytest.raises(ValueError, match="does not say what was spent"):
        trainer(tmp_path).fit(Module(), loader(), ckpt_path=kept)
    behind: dict[str, Any] = {"private": strategy(checkpoint=tmp_path / "other.pt"), "max_steps": 3}
    with pytest.raises(KilledError):
        trainer(tmp_path, **behind, callbacks=[Seen(stop=1)]).fit(Module(), loader())
    behind["private"] = strategy(checkpoint=tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"of step 2, and the run's own file of step 1"):
        trainer(tmp_path, **behind).fit(Module(), loader(), ckpt_path=kept)


class Finetuning(BaseFinetuning):  # type: ignore[misc]
    def freeze_before_training(self, module: Any) -> None:
        self.freeze(module.net[0])

    def finetune_function(self, module: Any, epoch: int, optimizer: Any) -> None:
        raise AssertionError


def test_validation_alone_is_as_usual(tmp_path: Path) -> None:
    module = Module()
    made = trainer(tmp_path)
    made.validate(module, DataLoader(records(), batch_size=BATCH), verbose=False)
    assert made.strategy.private is None
    assert module.automatic_optimization


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_clip_val": 1.0},
        {"accumulate_grad_batches": 2},
        {"overfit_batches": 2},
        {"limit_train_batches": 2},
        {"limit_train_batches": 1},  # and not 1.0
        {"fast_dev_run": True},
        {"reload_dataloaders_every_n_epochs": 1},
        {"precision": "bf16-mixed"},
        {"max_epochs": -1},
        {"devices": 2},
        {"callbacks": [GradientAccumulationScheduler({0: 1, 2: 2})]},
        {"callbacks": [LearningRateFinder()]},
        {"callbacks": [StochasticWeightAveraging(0.1)]},
        {"callbacks": [Finetuning()]},
        {"callbacks": [ModelPruning("l1_unstructured")]},
        {"callbacks": [DeviceStatsMonitor()], "logger": True},
        {"callbacks": [ThroughputMonitor(lambda _: 1)], "logger": True},
        {"callbacks": [named.SpikeDetection()]},
        {"profiler": "simple"},
    ],
    ids=lambda settings: "-".join(
        f"{name} {type(one[0]).__name__ if isinstance(one, list) else one}"
        for name, one in settings.items()
    ),
)
def test_a_setting_of_the_trainer_that_does_not_go_with_the_accounting_is_refused(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    made = trainer(tmp_path, **settings)
    with pytest.raises(ValueError, match=r"cannot do this \(nothing was charged\)"):
        made.fit(Module(), loader())
    assert made.strategy.private is None


FOLLOWED = """
    accelerator barebones benchmark callbacks default_root_dir deterministic devices max_epochs
    max_steps max_time min_epochs min_steps strategy
"""
LOOKED_AT = "detect_anomaly plugins profiler"  # plugins of precision by what they say of it
ELSEWHERE = """
    check_val_every_n_epoch enable_autolog_hparams enable_checkpointing enable_model_summary
    enable_progress_bar inference_mode limit_predict_batches limit_test_batches limit_val_batches
    log_every_n_steps logger model_registry num_sanity_val_steps val_check_interval
"""  # of validation, logs and checkpoints
OF_WHAT_IS_NOT_USED = "gradient_clip_algorithm sync_batchnorm use_distributed_sampler"


def test_every_setting_of_this_version_was_judged() -> None:
    """A new version's new setting fails here: is it followed, harmless, or to be refused?"""
    groups = [text.split() for text in (FOLLOWED, LOOKED_AT, ELSEWHERE, OF_WHAT_IS_NOT_USED)]
    judged = [*_ALLOWED, *(name for group in groups for name in group)]
    assert len(judged) == len(set(judged))
    assert {*inspect.signature(lightning.Trainer).parameters} <= set(judged)


class Backward(Module):
    def backward(self, loss: Any, *args: Any) -> None:
        raise AssertionError


class Transfer(Module):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


class Data(lightning.LightningDataModule):  # type: ignore[misc]
    def train_dataloader(self) -> Any:
        return loader()

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


class Manual(Module):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class TwoOptimizers(Manual):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]


class EpochSchedule(Module):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class TakesBatches(Module):
    def training_step(self, dataloader_iter: Any) -> torch.Tensor:
        batch, i, _ = next(dataloader_iter)
        return super().training_step(batch, i)


class Clips(Module):
    def configure_gradient_clipping(self, *_: Any) -> None:
        raise AssertionError


class Attaches(Module):
    def configure_callbacks(self) -> Any:
        return [GradientAccumulationScheduler({0: 2})]


class Plateau(Module):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"},
        }


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Backward, "Backward has backward of its own"),
        (Transfer, "records do not pass through it"),
        (Manual, "automatic_optimization is False"),
        (TwoOptimizers, "2 optimizers: a run has one"),
        (EpochSchedule, "interval='epoch'"),
        (Plateau, "ReduceLROnPlateau"),
        (TakesBatches, "takes batches from dataloader_iter itself"),
        (Clips, "Clips has configure_gradient_clipping of its own"),
        (Attaches, "there is a GradientAccumulationScheduler"),
    ],
)
def test_a_module_that_updates_in_its_own_way_is_refused(
    kind: type[Module], message: str, tmp_path: Path
) -> None:
    made, module = trainer(tmp_path), kind()
    before = module.automatic_optimization
    with pytest.raises(ValueError, match=message):
        made.fit(module, loader())
    assert made.strategy.private is None
    assert module.automatic_optimization == before


def test_a_data_module_that_changes_batches_is_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    with pytest.raises(ValueError, match="Data has on_after_batch_transfer of its own"):
        made.fit(Module(), datamodule=Data())
    assert made.strategy.private is None


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(records())


def test_a_loader_that_chooses_records_in_its_own_way_is_refused(tmp_path: Path) -> None:
    weighted = WeightedRandomSampler([1.0] * len(records()), 6)
    loaders: dict[str, Any] = {
        "WeightedRandomSampler": loader(shuffle=False, sampler=weighted),
        "sampler of its own, list": DataLoader(records(), batch_sampler=[[0, 1], [2, 3]]),
        "is a Tensor": torch.zeros(2, 3),
        "several training loaders": [loader(), loader()],
        "is in a dict": {"a": loader()},
        "is in a list": CombinedLoader([loader()]),
        "Endless, has no length": DataLoader(Endless(), batch_size=BATCH),
        "batch_size=None": DataLoader(records(), batch_size=None),
    }
    for message, given in loaders.items():
        made = trainer(tmp_path)
        with pytest.raises(ValueError, match=message):
            made.fit(Module(), given)


def test_anomaly_detection_is_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path, detect_anomaly=True)
    with pytest.raises(CaptureError, match="anomaly detection is on"):
        made.fit(Module(), loader())
    assert made.strategy.private is None


class Iterates(Callback):
    """The weights after each step."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        self.seen.append(weights(module).clone())


@pytest.mark.skipif(not hasattr(named, "EMAWeightAveraging"), reason="new in Lightning 2.6")
def test_lightnings_average_is_of_what_was_released(whole: Any, tmp_path: Path) -> None:
    """It puts its average in place for validation, and the weights back."""
    iterates = Iterates()
    average = named.EMAWeightAveraging(decay=0.5)
    made = trainer(tmp_path, callbacks=[iterates, average])
    made.fit(Module(), loader(), DataLoader(records(), batch_size=BATCH))
    assert made.strategy.private.moved == 1  # at the end, when the average takes their place
    assert torch.equal(iterates.seen[-1], weights(whole.lightning_module))
    expected = iterates.seen[0]
    for one in iterates.seen[1:]:
        expected = (expected + one) / 2
    assert torch.allclose(weights(made.lightning_module), expected)


@pytest.mark.parametrize(
    "settings",
    [
        {"barebones": True},
        {"deterministic": True},
        {"gradient_clip_algorithm": "norm"},
        {"sync_batchnorm": True},
        {"inference_mode": False},
        {"max_steps": EPOCHS * EPOCH_STEPS, "min_epochs": 50},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_what_is_harmless_changes_nothing(
    settings: dict[str, Any], whole: Any, tmp_path: Path
) -> None:
    if "barebones" in settings:  # it refuses the settings that it turns off
        names = ("progress_bar", "model_summary", "checkpointing")
        settings = {**settings, **{f"enable_{name}": None for name in names}, "logger": None}
    made = trainer(tmp_path, **settings)
    made.fit(Module(), loader())
    torch.use_deterministic_algorithms(False)
    assert torch.equal(weights(made.lightning_module), weights(whole.lightning_module))
    assert made.global_step == made.strategy.private.made == EPOCHS * EPOCH_STEPS


class Logs(Module):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        losses = super().training_step(batch, batch_idx)
        self.log("train_loss", losses.mean())
        return losses


def test_exact_values_of_records_cannot_be_logged(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    with pytest.raises(ValueError, match=r"as self\.log does"):
        made.fit(Logs(), loader())
    assert made.strategy.private.charged == 0


class SecondOptimizer(Module):
    def on_train_batch_end(self, *_: Any) -> None:
        second = torch.optim.SGD(self.parameters(), lr=0.1)
        x, y = records().tensors
        nn.functional.cross_entropy(self.net(x), y).backward()
        second.step()
        second.zero_grad()


def test_an_optimizer_in_a_hook_is_warned_of_and_stated(tmp_path: Path) -> None:
    made = trainer(tmp_path, max_epochs=1)
    with pytest.warns(WeightsMoved, match="an optimizer of its own in a hook"):
        made.fit(SecondOptimizer(), loader())
    assert made.strategy.private.moved == EPOCH_STEPS


class Replaces(Callback):
    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, i: int
    ) -> None:
        trainer.optimizers = [torch.optim.Adam(module.parameters())]


def test_an_optimizer_that_is_replaced_is_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path, callbacks=[Replaces()])
    with pytest.raises(ValueError, match="optimizers were replaced"):
        made.fit(Module(), loader())
    assert made.strategy.private.steps_done == 1


class Asks(Module):
    def configure_optimizers(self) -> Any:
        assert self.trainer.estimated_stepping_batches == EPOCHS * EPOCH_STEPS
        return super().configure_optimizers()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        assert (self.current_epoch, batch_idx) == divmod(self.global_step, EPOCH_STEPS)
        return {"loss": super().training_step(batch, batch_idx)}


def test_a_step_knows_where_the_training_stands(tmp_path: Path) -> None:
    made = trainer(tmp_path, enable_progress_bar=True)  # which has a thread that changes it
    made.fit(Asks(), loader())
    assert made.lightning_module.trainer is made


def test_the_loaders_workers_and_collate_function_are_used(tmp_path: Path) -> None:
    def doubled(rows: list[Any]) -> Any:
        assert torch.utils.data.get_worker_info() is not None
        ((x, y),) = rows
        return 2 * x[None], y[None]

    module = Module()
    made = trainer(tmp_path, max_steps=2)
    made.fit(module, loader(num_workers=1, collate_fn=doubled))
    assert made.global_step == 2
    assert not torch.equal(weights(module), weights(Module()))


def test_what_the_strategy_decides_cannot_be_given() -> None:
    with pytest.raises(ValueError, match="budget cannot be given"):
        strategy(budget=1)


def test_there_is_no_last_batch_to_drop(whole: Any, tmp_path: Path) -> None:
    made = trainer(tmp_path)
    made.fit(module := Module(), loader(drop_last=True))
    assert torch.equal(weights(module), weights(whole.lightning_module))
    assert "drop_last has no meaning" in " ".join(made.strategy.private.statement().split())
