"""``PrivateTrainer`` on the real library: the same run as a plain loop, charged and kept as one."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import get_worker_info

import plumbline as pl

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
peft = pytest.importorskip("peft")

from accelerate.state import AcceleratorState, DistributedType, PartialState  # noqa: E402

from plumbline.integrations.transformers_loss import own_loss, settle_problem_type  # noqa: E402
from plumbline.integrations.transformers_refusals import _ALLOWED  # noqa: E402
from plumbline.integrations.transformers_trainer import RUN_FILE, PrivateTrainer  # noqa: E402
from plumbline.training import WeightsMoved  # noqa: E402

RECORDS, STEPS = 24, 4
METHOD = pl.methods.dpsgd(clip=1.0)


def network() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
        num_labels=2,
    )
    return transformers.BertForSequenceClassification(config)


def texts() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 20, (RECORDS, 6), generator=generator)
    return [
        {"input_ids": row, "attention_mask": torch.ones(6).long(), "labels": int(row[0] > 10)}
        for row in tokens
    ]


class StopAt(transformers.TrainerCallback):  # type: ignore[misc]
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step == self.step


class SaveAtOnce(transformers.TrainerCallback):  # type: ignore[misc]
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_save = state.global_step == 1


def trainer(folder: Path, model: Any = None, **given: Any) -> PrivateTrainer:
    own = {name: given.pop(name) for name in list(given) if name in PARTS}
    args = transformers.TrainingArguments(
        output_dir=str(folder),
        **{
            "per_device_train_batch_size": 3,
            "gradient_accumulation_steps": 2,
            "max_steps": STEPS,
            "save_steps": 2,
            "logging_steps": 1,
            "learning_rate": 0.1,
            "optim": "sgd",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
            **given,
        },
    )
    own = {"method": METHOD, "delta": 1e-3, "noise_multiplier": 1.0, **own}
    model = network() if model is None else model
    return PrivateTrainer(model, args, **{"train_dataset": texts(), **own})


PARTS = (
    "callbacks",
    "compute_loss_func",
    "data_collator",
    "epsilon",
    "eval_dataset",
    "loss",
    "noise_multiplier",
    "optimizers",
    "settings",
    "train_dataset",
)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> PrivateTrainer:
    """A run that is logged, evaluated, saved, and not interrupted."""
    made = trainer(
        tmp_path_factory.mktemp("whole"),
        eval_dataset=texts()[:6],
        eval_strategy="steps",
        eval_steps=2,
        settings={"seed": 3},
    )
    made.train()
    return made


def test_the_weights_are_those_of_a_plain_loop(whole: PrivateTrainer) -> None:
    model = network()
    settle_problem_type(model, lambda: {"labels": torch.tensor([0])})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = pl.make_private(
        model.train(),
        optimizer,
        texts(),
        loss=pl.batch_loss(own_loss),
        method=METHOD,
        budget=pl.Budget(noise_multiplier=1.0, delta=1e-3, steps=STEPS, expected_batch_size=6),
        collate=transformers.default_data_collator,
        max_physical_batch=3,
        seed=3,
        schedulers=[
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / STEPS),
        ],
    )
    for batch in private:
        private.step(batch)
    assert not torch.equal(weights(model), weights(network()))
    # Weight decay puts the trainer's parameters into two groups, which changes nothing else.
    assert torch.allclose(weights(model), weights(whole.model), rtol=1e-5, atol=1e-7)


def test_every_log_line_has_epsilon_and_none_has_the_training_loss(whole: PrivateTrainer) -> None:
    logs = whole.state.log_history
    spent = [line["epsilon"] for line in logs]
    assert spent == sorted(spent)
    assert spent[0] == 0
    assert spent[-1] == whole.private.epsilon()
    assert all(line["delta"] == 1e-3 for line in logs)
    assert not any("loss" in line or "grad_norm" in line for line in logs)
    assert logs[0]["expected_batch_size"] == 6
    assert [line["step"] for line in logs if "eval_loss" in line] == [2, 4]
    assert [line["step"] for line in logs if "learning_rate" in line] == [1, 2, 3, 4]
    assert f"epsilon = {math.ceil(100 * spent[-1]) / 100:.2f}" in whole.statement()


def test_checkpoints_hold_the_model_and_the_run_is_in_one_file(whole: PrivateTrainer) -> None:
    folder = Path(whole.args.output_dir)
    assert (folder / RUN_FILE).exists()
    for step in (2, 4):
        names = {file.name for file in (folder / f"checkpoint-{step}").iterdir()}
        assert {"model.safetensors", "trainer_state.json"} <= names
        assert not names & {"optimizer.pt", "scheduler.pt", "rng_state.pth"}
    assert whole.state.global_step == whole.private.made == STEPS


def test_a_resumed_run_is_the_whole_one_and_is_charged_once(
    whole: PrivateTrainer, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"seed": 3}
    with pl.Ledger.open(tmp_path / "ledger") as ledger:
        settings["ledger"] = ledger
        # Between two saves: the third step is in the journal alone.
        stopped = trainer(tmp_path / "run", callbacks=[StopAt(3)], settings=settings)
        assert stopped.train().global_step == 3
        run = stopped.private.run
    with pl.Ledger.open(tmp_path / "ledger") as ledger:
        assert ledger.charged(run) == 3
        settings["ledger"] = ledger
        resumed = trainer(tmp_path / "run", settings=settings)
        assert resumed.train(resume_from_checkpoint=True).global_step == STEPS
        assert ledger.charged(run) == STEPS
        assert resumed.private.made == STEPS
    assert resumed.private.epsilon() == whole.private.epsilon()
    assert torch.allclose(weights(resumed.model), weights(whole.model), rtol=1e-5, atol=1e-7)
    steps = [line["step"] for line in resumed.state.log_history if "learning_rate" in line]
    assert steps == [1, 2, 4]  # the third was logged after the last folder was written


def test_a_run_is_neither_forgotten_nor_taken_back(tmp_path: Path) -> None:
    made = trainer(tmp_path / "run", save_steps=1, max_steps=2)
    with pytest.raises(ValueError, match="no run of PrivateTrainer"):
        made.train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="call train"):
        made.statement()
    made.train()
    with pytest.raises(ValueError, match="what it spent stays spent"):
        made.train()
    with pytest.raises(ValueError, match="what it spent stays spent"):
        trainer(tmp_path / "run", max_steps=2).train()
    earlier = str(tmp_path / "run" / "checkpoint-1")
    with pytest.raises(ValueError, match="cannot go back"):
        trainer(tmp_path / "run", max_steps=2).train(resume_from_checkpoint=earlier)
    last = str(tmp_path / "run" / "checkpoint-2")
    again = trainer(tmp_path / "run", max_steps=2, save_steps=1)
    assert again.train(resume_from_checkpoint=last).global_step == 2
    assert again.private.charged == 2


@pytest.mark.parametrize("change", ["max_steps", "gradient_accumulation_steps", "train_dataset"])
def test_a_run_that_goes_on_is_the_one_that_was_planned(change: str, tmp_path: Path) -> None:
    made = trainer(tmp_path, callbacks=[StopAt(1)])
    made.train()
    owner = made if change == "train_dataset" else made.args
    value = getattr(owner, change)
    setattr(owner, change, value * 2)
    with pytest.raises(ValueError, match="What it costs was planned"):
        made.train(resume_from_checkpoint=True)
    assert made.private.charged == 1
    setattr(owner, change, value)
    assert made.train(resume_from_checkpoint=True).global_step == STEPS


# What older versions of peft say of a model without a name, which one from a config has not.
@pytest.mark.filterwarnings("ignore:Could not find a config file in  - ")
def test_lora_trains_the_adapter_alone(tmp_path: Path) -> None:
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    model = peft.get_peft_model(network(), config)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    made = trainer(tmp_path, model, epsilon=8.0, noise_multiplier=None, max_steps=2)
    made.train()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert moved <= trained
    assert 7.9 < made.private.epsilon() <= 8.0
    assert (tmp_path / "checkpoint-2" / "adapter_model.safetensors").exists()


def test_lora_beside_tokens_of_a_tied_embedding(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    lora = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=2,
        target_modules=["c_attn"],
        fan_in_fan_out=True,
        trainable_token_indices=[1, 2],
    )
    model = peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora)
    lines = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in texts()]
    made = trainer(tmp_path, model, train_dataset=lines, max_steps=1)
    assert made.train().global_step == 1


def test_epochs_are_counted_in_expected_batches(tmp_path: Path) -> None:
    made = trainer(
        tmp_path,
        max_steps=-1,
        num_train_epochs=1.5,
        save_strategy="no",
        eval_strategy="epoch",
        eval_dataset=texts()[:6],
        callbacks=[SaveAtOnce()],
    )
    made.train()
    assert made.private.plan.steps == 6  # of 4 an epoch
    assert made.private.plan.sampling_rate == 6 / RECORDS
    assert [line["epoch"] for line in made.state.log_history if "eval_loss" in line] == [1, 1.5]
    assert (tmp_path / "checkpoint-1").exists()
    assert not (tmp_path / RUN_FILE).exists()


def test_records_without_number_or_label_are_refused(tmp_path: Path) -> None:
    bare = [{"input_ids": one["input_ids"]} for one in texts()]
    with pytest.raises(ValueError, match="no 'labels'"):
        trainer(tmp_path, train_dataset=bare).train()
    with pytest.raises(ValueError, match="without a length"):
        trainer(tmp_path, train_dataset=iter(texts())).train()
    with pytest.raises(ValueError, match="no train_dataset"):
        trainer(tmp_path, train_dataset=None).train()
    assert not (tmp_path / RUN_FILE).exists()


def test_the_loss_of_a_batch_is_that_of_each_record_alone() -> None:
    model = network().eval()
    settle_problem_type(model, lambda: {"labels": torch.tensor([0])})
    batch = transformers.default_data_collator(texts()[:3])
    losses = own_loss(model, batch)
    assert losses.shape == (3,)
    assert torch.allclose(losses.mean(), model(**batch).loss)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_grad_norm", 0.5),
        ("fp16", True),
        ("bf16", True),
        ("torch_compile", True),
        ("auto_find_batch_size", True),
        ("train_sampling_strategy", "group_by_length"),
        ("deepspeed", {"zero": 1}),
        ("fsdp", True),
        ("data_seed", 1),
        ("skip_memory_metrics", False),
        ("neftune_noise_alpha", 5.0),
        ("label_smoothing_factor", 0.1),
        ("include_num_input_tokens_seen", "all"),
        ("gradient_checkpointing", True),
        ("push_to_hub", True),
        ("lr_scheduler_type", "reduce_lr_on_plateau"),
        ("optim", "adalomo"),
        ("accelerator_config", {"split_batches": True}),
    ],
)
def test_a_setting_that_does_not_go_with_the_accounting_is_refused_before_any_charge(
    name: str, value: Any, ready: PrivateTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready.args, name, value, raising=False)
    with pytest.raises(ValueError, match=rf"nothing was charged\):\n- {name} is "):
        ready.train()
    assert ready.private is None


FOLLOWED = """
    adam_beta1 adam_beta2 adam_epsilon dataloader_drop_last dataloader_multiprocessing_context
    dataloader_num_workers dataloader_pin_memory dataloader_prefetch_factor ddp_backend
    ddp_timeout full_determinism gradient_accumulation_steps learning_rate local_rank
    lr_scheduler_kwargs max_steps num_train_epochs optim_args optim_target_modules output_dir
    per_device_train_batch_size remove_unused_columns save_only_model save_steps save_strategy
    save_total_limit seed tf32 use_cache use_cpu warmup_steps weight_decay
"""  # by the private run or by what the base class does before it
LOOKED_AT = "accelerator_config lr_scheduler_type optim"  # by refuse, beside the table
ELSEWHERE = """
    batch_eval_metrics disable_tqdm do_eval do_predict do_train eval_accumulation_steps eval_delay
    eval_do_concat_batches eval_on_start eval_steps eval_strategy eval_use_gather_object
    greater_is_better hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy
    hub_token include_for_metrics label_names load_best_model_at_end log_level log_level_replica
    log_on_each_node logging_first_step logging_nan_inf_filter logging_steps logging_strategy
    metric_for_best_model per_device_eval_batch_size prediction_loss_only project report_to
    restore_callback_states_from_checkpoint resume_from_checkpoint run_name save_on_each_node
    trackio_bucket_id trackio_space_id trackio_static_space_id
"""  # of evaluation, logs and uploads, which touch neither weights nor batches
OF_WHAT_IS_NOT_USED = """
    average_tokens_across_devices dataloader_in_order dataloader_persistent_workers
    ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph fsdp_config
    gradient_checkpointing_kwargs length_column_name liger_kernel_config torch_compile_backend
    torch_compile_mode
"""  # of the base class's loss, loader, DDP and of settings that are refused


def test_every_argument_of_this_version_was_judged() -> None:
    """A new version's new argument fails here: is it followed, harmless, or to be refused?"""
    groups = [text.split() for text in (FOLLOWED, LOOKED_AT, ELSEWHERE, OF_WHAT_IS_NOT_USED)]
    judged = [*_ALLOWED, *(name for group in groups for name in group)]
    assert len(judged) == len(set(judged))
    assert {one.name for one in dataclasses.fields(transformers.TrainingArguments)} == set(judged)


@pytest.mark.parametrize(
    "settings",
    [
        {"average_tokens_across_devices": False},
        {"dataloader_persistent_workers": True, "dataloader_in_order": False},
        {"ddp_find_unused_parameters": True, "ddp_static_graph": True},
        {"gradient_checkpointing_kwargs": {"use_reentrant": True}},
        {"fsdp_config": {"min_num_params": 1}, "liger_kernel_config": {"rope": True}},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_an_argument_of_what_is_not_used_changes_nothing(
    settings: dict[str, Any], whole: PrivateTrainer, tmp_path: Path
) -> None:
    made = trainer(tmp_path, settings={"seed": 3}, save_strategy="no", **settings)
    made.train()
    assert torch.equal(weights(made.model), weights(whole.model))


@pytest.mark.parametrize("setting", ["torch_compile_backend", "torch_compile_mode"])
@pytest.mark.usefixtures("launched")
def test_how_to_compile_is_taken_for_a_wish_to(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BACKEND", "MODE"):  # which the arguments set; restored afterwards
        monkeypatch.setenv(f"ACCELERATE_DYNAMO_{name}", "no")
    with pytest.raises(ValueError, match="torch_compile is True"):
        trainer(tmp_path, **{setting: "default" if setting.endswith("mode") else "eager"})


class Moves(transformers.TrainerCallback):  # type: ignore[misc]
    def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
        for weight in model.parameters():
            weight.data.mul_(0.5)


def test_a_callback_that_moves_the_weights_is_warned_of_and_stated(tmp_path: Path) -> None:
    made = trainer(tmp_path, callbacks=[Moves()], save_strategy="no", max_steps=3)
    with pytest.warns(WeightsMoved):
        made.train()
    assert made.private.moved == 3
    assert "After 3 of the steps" in " ".join(made.statement().split())


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> PrivateTrainer:
    return trainer(tmp_path_factory.mktemp("ready"))


def test_the_default_norm_and_none_are_accepted(tmp_path: Path) -> None:
    assert trainer(tmp_path).args.max_grad_norm == 1.0
    trainer(tmp_path, max_grad_norm=0.0)


class LooksAtGradients(transformers.TrainerCallback):  # type: ignore[misc]
    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError


def test_parts_that_would_act_beside_the_step_are_refused(tmp_path: Path) -> None:
    parts: dict[str, tuple[str, Any]] = {
        "callbacks": ("LooksAtGradients has on_pre_optimizer_step", [LooksAtGradients()]),
        "compute_loss_func": ("give loss= to PrivateTrainer", lambda *_: None),
        "data_collator": ("packs several", transformers.DataCollatorWithFlattening()),
        "settings": ("budget cannot be given", {"budget": 1}),
    }
    for name, (message, part) in parts.items():
        with pytest.raises(ValueError, match=message):
            trainer(tmp_path, **{name: part})
    optimizers = [torch.optim.SGD(network().parameters(), lr=0.1)] * 2
    with pytest.raises(ValueError, match="give one torch optimizer"):
        trainer(tmp_path, optimizers=(optimizers, None))


def test_gradient_checkpointing_of_the_model_itself_is_refused(tmp_path: Path) -> None:
    model = network()
    model.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="the model's gradient checkpointing is on"):
        trainer(tmp_path, model)


def test_a_trainer_with_a_step_or_sampler_of_its_own_is_refused(ready: PrivateTrainer) -> None:
    names = ("compute_loss", "training_step", "get_train_dataloader", "_prepare_inputs")
    for name in names:
        own = type("Own", (PrivateTrainer,), {name: lambda *_: None})
        with pytest.raises(ValueError, match=f"Own has a {name} of its own"):
            own(network(), ready.args, train_dataset=texts(), method=METHOD, delta=1e-3)
    for name in names:
        setattr(ready, name, lambda *_: None)
        with pytest.raises(ValueError, match=f"PrivateTrainer has a {name} of its own"):
            ready.train()
        delattr(ready, name)


@pytest.fixture
def launched() -> Iterator[None]:
    """As in a new process, since accelerate reads its variables once."""
    states = (PartialState._shared_state, AcceleratorState._shared_state)
    kept = [dict(state) for state in states]
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    for state, before in zip(states, kept, strict=True):
        state.update(before)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ACCELERATE_MIXED_PRECISION", "bf16", "mixed_precision is 'bf16'"),
        ("ACCELERATE_DYNAMO_BACKEND", "eager", "accelerate would compile"),
    ],
)
@pytest.mark.usefixtures("launched")
def test_what_accelerate_launch_asks_for_is_refused_too(
    variable: str, value: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path)


def test_what_accelerate_makes_of_several_processes_is_refused_too(
    ready: PrivateTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = DistributedType.FSDP  # as of two processes with ACCELERATE_USE_FSDP=true
    monkeypatch.setitem(AcceleratorState._shared_state, "distributed_type", kind)
    with pytest.raises(ValueError, match="accelerate would use FSDP"):
        ready.train()


class Fetched(list[Any]):
    """Records that say in which process they were read."""

    def __getitem__(self, number: Any) -> Any:
        assert get_worker_info() is not None or number == 0  # the first one shows what labels are
        return super().__getitem__(number)


def test_worker_processes_read_the_same_records(whole: PrivateTrainer, tmp_path: Path) -> None:
    made = trainer(
        tmp_path,
        train_dataset=Fetched(texts()),
        settings={"seed": 3},
        dataloader_num_workers=1,
        dataloader_drop_last=True,  # of a last batch, which there is not
    )
    made.train()
    assert torch.equal(weights(made.model), weights(whole.model))
    stated = " ".join(made.statement().split())
    assert "the batch size of 6 is the expected one" in stated
    assert "drop_last has no meaning" in stated


def test_the_base_class_makes_no_step_and_no_search(ready: PrivateTrainer) -> None:
    with pytest.raises(RuntimeError, match="no step outside"):
        ready.training_step(ready.model, {})
    with pytest.raises(ValueError, match="each costs privacy"):
        ready.train(trial={"learning_rate": 1.0})
    with pytest.raises(ValueError, match="each costs privacy"):
        ready.hyperparameter_search()


def test_an_argument_of_make_private_is_one_of_the_settings() -> None:
    with pytest.raises(
        TypeError, match=r"pad_to is for make_private.*settings=\{'pad_to': \.\.\.\}"
    ):
        PrivateTrainer(network(), method=METHOD, delta=1e-3, epsilon=1, pad_to=6)


def test_texts_of_different_lengths_need_a_declared_length(tmp_path: Path) -> None:
    uneven = [{**one, "input_ids": one["input_ids"][: 3 + i % 3]} for i, one in enumerate(texts())]
    for one in uneven:
        one["attention_mask"] = torch.ones(len(one["input_ids"])).long()
    with pytest.raises(ValueError, match="pad_to"):
        trainer(tmp_path / "one", train_dataset=uneven).train()
    settings = {"pad_to": {"input_ids": 6, "attention_mask": 6}}
    made = trainer(tmp_path / "two", train_dataset=uneven, settings=settings, max_steps=1)
    assert made.train().global_step == 1


SCRIPT = """
import os
import sys
from pathlib import Path

import plumbline as pl
from tests.integrations.test_transformers_trainer import StopAt, texts, trainer, weights

folder, stop = Path(sys.argv[1]), int(sys.argv[2])
ledger = pl.Ledger.open(folder / "ledger") if os.environ["RANK"] == "0" else None
resumed = (folder / "run").exists()
made = trainer(
    folder / "run",
    eval_dataset=texts()[:6],
    eval_strategy="steps",
    eval_steps=2,
    callbacks=[StopAt(stop)],
    settings={"ledger": ledger},
)
made.train(resume_from_checkpoint=resumed)
assert made.private.ranks.count == 2
assert made.private.plan.expected_batch_size == 12
print("weights", float(weights(made.model).double().sum()))
if ledger is not None:
    print("charged", ledger.charged(made.private.run))
"""


@pytest.mark.slow
def test_several_processes_make_one_run(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    for stop in (3, STEPS):
        command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        done = subprocess.run(
            [sys.executable, "-m", *command, tmp_path / "script.py", tmp_path, str(stop)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert f"charged {stop}\n" in done.stdout
        one, other = re.findall(r"^weights (.*)$", done.stdout, re.M)
        assert one == other
