"""Pretrained networks: what each way of tuning trains, its gradients, its padding, its files.

The networks are small ones with random weights, built from a config, saved, and loaded again.
"""

import json
import logging
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import plumbline as pl
from plumbline.gradients import capture
from plumbline.models.fine_tuning import (
    FineTuned,
    Task,
    Tune,
    fine_tune,
    language_labels,
    language_loss,
    load,
)
from tests.gradients.harness import Inputs, assert_matches_loop, assert_unmoved_by_others

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")

KINDS: dict[str, Task] = {"vit": "image", "deit": "image", "bert": "text", "gpt2": "language"}
TUNES = get_args(Tune)
VOCABULARY, CLASSES, RANK = 30, 3, 2
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
}  # fmt: skip


def pretrained(kind: str) -> nn.Module:
    """A network as it is before fine-tuning: with another head, or none."""
    torch.manual_seed(0)
    pixels = {"image_size": 8, "patch_size": 4, "num_channels": 3, "num_labels": 7}
    match kind:
        case "vit":
            config = transformers.ViTConfig(**SIZES, **pixels)
            model = transformers.ViTForImageClassification(config)
        case "deit":
            config = transformers.DeiTConfig(**SIZES, **pixels)
            model = transformers.DeiTForImageClassification(config)
        case "deit, distilled":
            config = transformers.DeiTConfig(**SIZES, **pixels)
            model = transformers.DeiTForImageClassificationWithTeacher(config)
        case "bert":
            config = transformers.BertConfig(
                **SIZES, vocab_size=VOCABULARY, max_position_embeddings=12
            )
            model = transformers.BertForPreTraining(config)
        case _:
            config = transformers.GPT2Config(
                vocab_size=VOCABULARY, n_positions=12, n_embd=16, n_layer=2, n_head=2,
                bos_token_id=0, eos_token_id=0,
            )  # fmt: skip
            model = transformers.GPT2LMHeadModel(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:  # livelier than fresh ones, which are nearly linear
            nn.init.normal_(parameter, std=0.2)
    return model  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of saved weights for each kind of network."""
    found = {}
    transformers.utils.logging.disable_progress_bar()
    for kind in (*KINDS, "deit, distilled"):
        found[kind] = tmp_path_factory.mktemp("pretrained") / kind
        pretrained(kind).save_pretrained(found[kind])  # type: ignore[operator]
    transformers.utils.logging.enable_progress_bar()
    return found


def loaded(folders: dict[str, Path], kind: str, tune: Tune, **options: Any) -> FineTuned:
    task = KINDS[kind]
    options = {"dropout": 0.0, "lora_rank": RANK, "lora_alpha": 4.0, **options}
    classes = None if task == "language" else CLASSES
    return load(folders[kind], task=task, classes=classes, tune=tune, **options)


def batch(kind: str, records: int = 3) -> dict[str, Tensor]:
    """Named inputs, with padding in some of the texts."""
    if KINDS[kind] == "image":
        return {"pixel_values": torch.randn(records, 3, 8, 8)}
    tokens = torch.randint(1, VOCABULARY, (records, 7))
    mask = torch.ones_like(tokens)
    mask[1, 5:] = 0
    return {"input_ids": tokens * mask, "attention_mask": mask}


def labels(kind: str, inputs: dict[str, Tensor]) -> Tensor:
    if KINDS[kind] == "language":
        return language_labels(inputs["input_ids"], inputs["attention_mask"])
    return next(iter(inputs.values())).flatten(1).sum(1).long() % CLASSES


def losses(kind: str) -> Callable[[nn.Module, Inputs], Tensor]:
    def run(model: nn.Module, inputs: Inputs) -> Tensor:
        assert isinstance(inputs, dict)
        target = labels(kind, inputs)
        logits = model(**inputs)
        if KINDS[kind] == "language":
            return language_loss(logits, target)
        return F.cross_entropy(logits, target, reduction="none")

    return run


def trained(model: nn.Module) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


HEADS = {
    "vit": {"classifier.weight", "classifier.bias"},
    "deit": {"classifier.weight", "classifier.bias"},
    "bert": {"classifier.weight", "classifier.bias"},
    "gpt2": {"lm_head.weight"},
}
LAYER_BIASES = {
    "vit": (
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("fc1", "fc2", "layernorm_before", "layernorm_after"),
    ),
    "bert": (
        *("attention.self.query", "attention.self.key", "attention.self.value"),
        *("attention.output.dense", "attention.output.LayerNorm"),
        *("intermediate.dense", "output.dense", "output.LayerNorm"),
    ),
    "gpt2": ("ln_1", "ln_2", "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
}
LAYER_BIASES["deit"] = LAYER_BIASES["vit"]
OTHER_BIASES = {
    "vit": ("vit.embeddings.patch_embeddings.projection", "vit.layernorm"),
    "deit": ("deit.embeddings.patch_embeddings.projection", "deit.layernorm"),
    "bert": ("bert.embeddings.LayerNorm", "bert.pooler.dense"),
    "gpt2": ("transformer.ln_f",),
}
LAYERS = {
    "vit": "vit.layers",
    "deit": "deit.layers",
    "bert": "bert.encoder.layer",
    "gpt2": "transformer.h",
}
ADAPTED = {
    "vit": ("attention.q_proj", "attention.v_proj"),
    "deit": ("attention.q_proj", "attention.v_proj"),
    "bert": ("attention.self.query", "attention.self.value"),
    "gpt2": ("attn.c_attn",),
}


@pytest.mark.parametrize("kind", KINDS)
class TestWhatIsTrained:
    def test_full(self, folders: dict[str, Path], kind: str) -> None:
        model = loaded(folders, kind, "full")
        assert trained(model) == {name for name, _ in model.named_parameters()}

    def test_last(self, folders: dict[str, Path], kind: str) -> None:
        model = loaded(folders, kind, "last")
        assert trained(model) == {f"network.{name}" for name in HEADS[kind]}

    def test_bias(self, folders: dict[str, Path], kind: str) -> None:
        model = loaded(folders, kind, "bias")
        inner = LAYER_BIASES[kind]
        expected = {f"network.{name}.bias" for name in OTHER_BIASES[kind]}
        if KINDS[kind] != "language":
            expected |= {f"network.{name}" for name in HEADS[kind]}
        layers = {name for name in trained(model) if f"network.{LAYERS[kind]}." in name}
        assert trained(model) == expected | layers
        for layer in ("0", "1"):
            prefix = f"network.{LAYERS[kind]}.{layer}."
            own = {name.removeprefix(prefix) for name in layers if name.startswith(prefix)}
            assert len(own) == len(inner)
            for part in inner:
                assert sum(name.endswith(f"{part}.bias") for name in own) >= 1, part
        assert all(
            parameter.requires_grad
            for name, parameter in model.named_parameters()
            if name.endswith(".bias")
        )

    def test_lora(self, folders: dict[str, Path], kind: str) -> None:
        model = loaded(folders, kind, "lora")
        inside = "network.base_model.model."
        expected = {
            f"{inside}{LAYERS[kind]}.{layer}.{part}.lora_{half}.default.weight"
            for layer in (0, 1)
            for part in ADAPTED[kind]
            for half in "AB"
        }
        if KINDS[kind] != "language":
            expected |= {
                f"{inside}classifier.modules_to_save.default.{part}" for part in ("weight", "bias")
            }
        assert trained(model) == expected
        (rank,) = {p.shape[0] for name, p in model.named_parameters() if "lora_A" in name}
        assert rank == RANK


def test_the_last_layers_of_a_distilled_network_are_two(folders: dict[str, Path]) -> None:
    folder = folders["deit, distilled"]
    last = load(folder, task="image", classes=CLASSES, tune="last")
    heads = ("cls_classifier", "distillation_classifier")
    assert trained(last) == {
        f"network.{one}.{part}" for one in heads for part in ("weight", "bias")
    }
    lora = load(folder, task="image", classes=CLASSES, tune="lora")
    assert sum("modules_to_save" in name for name in trained(lora)) == 4
    assert lora(torch.randn(2, 3, 8, 8)).shape == (2, CLASSES)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tune", TUNES)
def test_gradients_match_the_loop(folders: dict[str, Path], kind: str, tune: Tune) -> None:
    model = loaded(folders, kind, tune).eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # they start at zero, where the other half has no gradient
            nn.init.normal_(parameter, std=0.2)
    found = assert_matches_loop(
        model, batch(kind), losses=losses(kind), perturbed=tune in ("bias", "lora")
    )
    assert set(found.names) == trained(model)


@pytest.mark.parametrize("kind", KINDS)
def test_records_do_not_mix(folders: dict[str, Path], kind: str) -> None:
    model = loaded(folders, kind, "full")
    inputs = batch(kind)
    assert_unmoved_by_others(model, inputs, losses(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_will_do(folders: dict[str, Path], kind: str) -> None:
    model = loaded(folders, kind, "full")
    named = {name: x for name, x in batch(kind).items() if name != "attention_mask"}
    (inputs,) = named.values()
    found = model(inputs)
    assert isinstance(found, Tensor)
    assert torch.equal(found, model(**named))
    shape = (3, 7, VOCABULARY) if KINDS[kind] == "language" else (3, CLASSES)
    assert found.shape == shape


def data(kind: str) -> Any:
    """Two kinds of records that are easily told apart; and, of a text, its padding."""
    which = torch.arange(16) % 2
    if KINDS[kind] == "image":
        return torch.randn(2, 3, 8, 8)[which] + 0.1 * torch.randn(16, 3, 8, 8), which
    tokens = torch.tensor([[3, 4, 5, 6, 7, 8], [20, 19, 18, 17, 16, 15]])[which]
    mask = (torch.arange(6) < (4 + torch.arange(16) % 3)[:, None]).long()
    named = {"input_ids": tokens * mask, "attention_mask": mask}
    target = language_labels(tokens, mask) if KINDS[kind] == "language" else which
    return {**named, "labels": target}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tune", TUNES)
def test_a_private_run_trains(folders: dict[str, Path], kind: str, tune: Tune) -> None:
    """Nothing warns, and the loss falls; with far less noise than privacy takes."""
    model = loaded(folders, kind, tune, dropout=0.1)
    records = data(kind)
    loss = language_loss if KINDS[kind] == "language" else nn.CrossEntropyLoss(reduction="none")

    def mean_loss() -> float:
        model.eval()
        with torch.no_grad():
            if isinstance(records, tuple):
                found = loss(model(records[0]), records[1])
            else:
                named = {name: x for name, x in records.items() if name != "labels"}
                found = loss(model(**named), records["labels"])
        model.train()
        return float(found.mean())

    frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    before = mean_loss()
    private = pl.make_private(
        model,
        torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02),
        records,
        loss=loss,
        method=pl.methods.dpsgd(clip=1.0),
        budget=pl.Budget(noise_multiplier=0.05, delta=1e-3, steps=6, expected_batch_size=14),
        accountant="rdp",
        seed=1,
    )
    private.fit(progress=False)
    assert mean_loss() < before - 0.02
    for name, parameter in model.named_parameters():
        if name in frozen:
            assert torch.equal(parameter, frozen[name]), name


class TestLanguageLoss:
    def test_is_the_mean_over_each_records_own_tokens(self) -> None:
        logits = torch.randn(3, 5, VOCABULARY, dtype=torch.float64)
        tokens = torch.randint(0, VOCABULARY, (3, 5))
        lengths = [5, 3, 2]
        mask = (torch.arange(5) < torch.tensor(lengths)[:, None]).long()
        found = language_loss(logits, language_labels(tokens, mask))
        for i, length in enumerate(lengths):
            expected = 0.0
            for t in range(length - 1):
                probabilities = torch.softmax(logits[i, t], 0)
                expected -= math.log(float(probabilities[tokens[i, t + 1]]))
            assert float(found[i]) == pytest.approx(expected / (length - 1), rel=1e-12)

    def test_a_record_without_tokens_has_loss_zero_and_no_gradient(self) -> None:
        logits = torch.randn(2, 4, VOCABULARY, requires_grad=True)
        target = torch.full((2, 4), -100)
        target[1] = torch.arange(4)
        found = language_loss(logits, target)
        assert float(found[0].detach()) == 0
        found.sum().backward()
        assert logits.grad is not None
        assert torch.equal(logits.grad[0], torch.zeros(4, VOCABULARY))
        assert float(logits.grad[1].abs().sum()) > 0

    def test_only_the_first_token_is_not_predicted(self) -> None:
        logits = torch.randn(1, 3, VOCABULARY)
        target = torch.tensor([[1, 2, 3]])
        other = torch.tensor([[9, 2, 3]])
        assert torch.equal(language_loss(logits, target), language_loss(logits, other))
        for place in (1, 2):
            other = target.clone()
            other[0, place] = 9
            assert not torch.equal(language_loss(logits, target), language_loss(logits, other))

    def test_equals_transformers_own_for_one_record(self, folders: dict[str, Path]) -> None:
        model = loaded(folders, "gpt2", "full").eval()
        tokens = torch.randint(0, VOCABULARY, (1, 7))
        theirs = model.network(input_ids=tokens, labels=tokens).loss
        torch.testing.assert_close(language_loss(model(tokens), tokens)[0], theirs)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
class TestPadding:
    def gradients(
        self, model: nn.Module, kind: str, inputs: dict[str, Tensor], target: Tensor
    ) -> dict[str, Tensor]:
        def run(net: nn.Module, record: tuple[dict[str, Tensor], Tensor]) -> Tensor:
            given, label = record
            logits = net(**given)
            if kind == "gpt2":
                return language_loss(logits, label)
            return F.cross_entropy(logits, label, reduction="none")

        return capture(model, run, (inputs, target)).materialise()

    def test_what_is_under_the_mask_makes_no_difference(
        self, folders: dict[str, Path], kind: str
    ) -> None:
        model = loaded(folders, kind, "full").eval()
        inputs = batch(kind)
        target = labels(kind, inputs)
        before = self.gradients(model, kind, inputs, target)
        hidden = inputs["attention_mask"] == 0
        other = {**inputs, "input_ids": torch.where(hidden, 17, inputs["input_ids"])}
        after = self.gradients(model, kind, other, target)
        for name, value in before.items():
            torch.testing.assert_close(after[name], value, rtol=1e-5, atol=1e-6)

    def test_another_records_length_makes_no_difference(
        self, folders: dict[str, Path], kind: str
    ) -> None:
        """The record is alone, or padded to the length of a longer one beside it."""
        model = loaded(folders, kind, "full").eval().double()
        short, long = torch.randint(1, VOCABULARY, (1, 4)), torch.randint(1, VOCABULARY, (1, 9))
        tokens = torch.cat([F.pad(short, (0, 5)), long])
        mask = torch.ones_like(tokens)
        mask[0, 4:] = 0
        both = {"input_ids": tokens, "attention_mask": mask}
        alone = {"input_ids": short, "attention_mask": mask[:1, :4]}
        together = self.gradients(model, kind, both, self.target(kind, tokens, mask))
        by_itself = self.gradients(model, kind, alone, self.target(kind, short, mask[:1, :4]))
        for name, value in by_itself.items():
            torch.testing.assert_close(together[name][0], value[0], rtol=1e-9, atol=1e-12)

    def target(self, kind: str, tokens: Tensor, mask: Tensor) -> Tensor:
        if kind == "gpt2":
            return language_labels(tokens, mask)
        return torch.ones(len(tokens), dtype=torch.long)

    def test_whether_others_are_padded_makes_not_one_bit_of_difference(
        self, folders: dict[str, Path], kind: str
    ) -> None:
        model = loaded(folders, kind, "full").eval()
        tokens = torch.randint(1, VOCABULARY, (3, 9))
        whole = torch.ones_like(tokens)
        some = whole.clone()
        some[2, 4:] = 0
        found = [
            self.gradients(
                model,
                kind,
                {"input_ids": tokens, "attention_mask": mask},
                self.target(kind, tokens, mask),
            )
            for mask in (whole, whole, some)  # the first capture of a model takes another way
        ][1:]
        for name in found[0]:
            assert torch.equal(found[0][name][:2], found[1][name][:2]), name


def test_texts_without_a_mask_get_one(folders: dict[str, Path]) -> None:
    model = loaded(folders, "bert", "full").eval()
    inputs = batch("bert")
    torch.testing.assert_close(model(inputs["input_ids"]), model(**inputs))
    hidden = model(torch.tensor([[5, 6, 0, 0]]))
    torch.testing.assert_close(hidden, model(torch.tensor([[5, 6]])))
    assert torch.isfinite(model(torch.zeros(2, 4, dtype=torch.long))).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tune", TUNES)
def test_what_is_saved_is_loaded(
    folders: dict[str, Path], tmp_path: Path, kind: str, tune: Tune
) -> None:
    model = loaded(folders, kind, tune)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
    model.save(tmp_path / "folder")
    again = load(
        tmp_path / "folder",
        task=KINDS[kind],
        classes=None if KINDS[kind] == "language" else CLASSES,
        tune=tune,
        dropout=0.0,
    )
    assert trained(again) == trained(model)
    stored = dict(again.named_parameters())
    for name, parameter in model.named_parameters():
        if "original_module" not in name:  # peft's copy of the classifier before it was trained
            assert torch.equal(stored[name], parameter), name
    inputs = batch(kind)
    assert torch.equal(again.eval()(**inputs), model.eval()(**inputs))
    if tune == "lora":  # the adapter alone
        config = json.loads((tmp_path / "folder" / "adapter_config.json").read_text())
        assert config["r"] == RANK
        assert not (tmp_path / "folder" / "model.safetensors").exists()


def test_the_number_of_classes_is_as_stored_unless_told(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    assert load(folders["vit"], task="image")(torch.randn(2, 3, 8, 8)).shape == (2, 7)
    loaded(folders, "vit", "full").save(tmp_path)
    assert load(tmp_path, task="image")(torch.randn(2, 3, 8, 8)).shape == (2, CLASSES)


def test_the_pretrained_weights_are_those_stored(folders: dict[str, Path]) -> None:
    for kind in KINDS:
        stored = dict(pretrained(kind).named_parameters())
        model = loaded(folders, kind, "full")
        shared = [
            (name, parameter)
            for name, parameter in model.network.named_parameters()
            if "classifier" not in name
        ]
        assert len(shared) > 20
        for name, parameter in shared:
            assert torch.equal(parameter, stored[name]), name


def test_a_last_layer_is_trained_without_the_embedding_that_it_shares(
    folders: dict[str, Path],
) -> None:
    whole = loaded(folders, "gpt2", "full").network
    assert whole.lm_head.weight is whole.transformer.wte.weight  # type: ignore[union-attr]
    model = loaded(folders, "gpt2", "last")
    head = model.network.lm_head.weight  # type: ignore[union-attr]
    embedding = model.network.transformer.wte.weight  # type: ignore[union-attr]
    assert torch.equal(head, embedding)
    nn.init.zeros_(head)
    assert float(embedding.abs().sum()) > 0
    assert not embedding.requires_grad


def test_it_is_in_float32_and_in_training_mode(folders: dict[str, Path], tmp_path: Path) -> None:
    half = pretrained("vit").half()
    half.save_pretrained(tmp_path)  # type: ignore[operator]
    model = load(tmp_path, task="image")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize(("given", "expected"), [(None, {0.1}), (0.0, {0.0}), (0.3, {0.3})])
def test_dropout(folders: dict[str, Path], given: float | None, expected: set[float]) -> None:
    for kind in ("bert", "gpt2"):
        model = loaded(folders, kind, "full", dropout=given)
        assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} == expected
    lora = loaded(folders, "bert", "lora", dropout=given)
    config = lora.network.peft_config["default"]  # type: ignore[index, union-attr]
    assert config.lora_dropout == (given or 0.0)
    image = loaded(folders, "vit", "full", dropout=given)
    attention = image.network.config.attention_probs_dropout_prob  # type: ignore[union-attr]
    assert attention == (given or 0.0)


def test_loading_and_saving_are_silent(
    folders: dict[str, Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = transformers.utils.logging
    level, bars = logger.get_verbosity(), logger.is_progress_bar_enabled()
    with caplog.at_level(logging.WARNING):
        for kind, tune in (("bert", "full"), ("vit", "lora")):
            loaded(folders, kind, tune).save(tmp_path / kind)  # type: ignore[arg-type]
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    assert (logger.get_verbosity(), logger.is_progress_bar_enabled()) == (level, bars)


def test_weights_that_are_new_beside_the_last_layer_are_named(tmp_path: Path) -> None:
    config = transformers.BertConfig(**SIZES, vocab_size=VOCABULARY, max_position_embeddings=12)
    without_pooler = transformers.BertForMaskedLM(config)
    transformers.utils.logging.disable_progress_bar()
    without_pooler.save_pretrained(tmp_path)
    transformers.utils.logging.enable_progress_bar()
    with pytest.warns(UserWarning, match=r"no weights for 'bert\.pooler\.dense\.bias' \(2 besides"):
        load(tmp_path, task="text", classes=CLASSES)


class Timm(nn.Module):
    """As timm's networks: one tensor to logits, and a method that gives the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 6)])
        self.head = nn.Linear(6, 2)

    def get_classifier(self) -> nn.Module:
        return self.head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.blocks[0](x)))


class TestOtherNetworks:
    HEAD = frozenset({"network.head.weight", "network.head.bias"})

    @pytest.mark.parametrize(
        ("tune", "expected"),
        [
            ("full", {*HEAD, "network.blocks.0.weight", "network.blocks.0.bias"}),
            ("last", HEAD),
            ("bias", {*HEAD, "network.blocks.0.bias"}),
        ],
    )
    def test_the_last_layer_is_what_they_say(self, tune: Tune, expected: set[str]) -> None:
        model = fine_tune(Timm(), tune=tune)
        assert trained(model) == expected
        assert_matches_loop(model, torch.randn(3, 4))

    def test_lora_acts_where_it_is_told(self) -> None:
        model = fine_tune(Timm(), tune="lora", lora_rank=1, lora_targets=r"blocks\.0")
        assert sum("lora" in name for name in trained(model)) == 2
        assert sum("modules_to_save" in name for name in trained(model)) == 2
        assert model(torch.randn(3, 4)).shape == (3, 2)

    def test_one_that_does_not_say_is_refused(self) -> None:
        with pytest.raises(ValueError, match="Sequential does not say which layer is its last"):
            fine_tune(nn.Sequential(nn.Linear(2, 2)), tune="last")

    def test_saving_is_left_to_torch(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match=r"not a network from transformers.*torch\.save"):
            fine_tune(Timm()).save(tmp_path)


class TestErrors:
    @pytest.mark.parametrize("name", ["./nothing", "/no/such/folder", "a/b/c", Path("nothing")])
    def test_a_folder_that_is_not_there(self, name: Any) -> None:
        with pytest.raises(FileNotFoundError, match=r"folder .* does not exist.*save_pretrained"):
            load(name, task="image")

    def test_a_folder_without_a_network(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match=r"could not be loaded .*save_pretrained wrote"):
            load(tmp_path, task="image")

    def test_a_folder_without_weights(self, folders: dict[str, Path], tmp_path: Path) -> None:
        (tmp_path / "config.json").write_bytes((folders["vit"] / "config.json").read_bytes())
        with pytest.raises(OSError, match=r"could not be loaded \(.*model\.safetensors"):
            load(tmp_path, task="image")

    def test_a_name_that_the_hub_cannot_give(self) -> None:
        with pytest.raises(OSError, match=r"The hub's nobody/nothing could not be loaded \("):
            load("nobody/nothing", task="text")

    def test_a_network_for_another_task(self, folders: dict[str, Path]) -> None:
        with pytest.raises(
            ValueError, match=r"of the kind 'bert', .* no model of the task 'image'"
        ):
            load(folders["bert"], task="image")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"tune": "some"}, "tune is 'some'; it must be one of full, last, bias, lora"),
            ({"task": "audio"}, "task is 'audio'; it must be one of image, text, language"),
            ({"classes": 0}, "classes is 0; it must be a whole number of at least 1"),
            ({"classes": 2.5}, "classes is 2.5; it must be a whole number"),
            ({"dropout": 1.0}, "dropout is 1.0; it must be at least 0 and below 1"),
            ({"task": "language", "classes": 3}, "classes is 3, but a language model predicts"),
            ({"tune": "lora", "lora_rank": 0}, "lora_rank is 0; it must be a whole number"),
            (
                {"tune": "lora", "lora_targets": "nothing"},
                "matches lora_targets = 'nothing'. Its layers are classifier, vit.",
            ),
        ],
    )
    def test_arguments(
        self, folders: dict[str, Path], options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            load(folders["vit"], **{"task": "image", **options})
        if "tune" in options and "lora_rank" not in options and "lora_targets" not in options:
            with pytest.raises(ValueError, match=message):
                fine_tune(pretrained("vit"), **options)

    def test_an_adapter_is_an_adapter(self, folders: dict[str, Path], tmp_path: Path) -> None:
        loaded(folders, "vit", "lora").save(tmp_path)
        with pytest.raises(ValueError, match="holds a LoRA adapter, but tune is 'full'"):
            load(tmp_path, task="image", classes=CLASSES)

    def test_an_adapter_of_a_network_that_is_nowhere(self, tmp_path: Path) -> None:
        fine_tune(pretrained("vit"), tune="lora").save(tmp_path)
        with pytest.raises(ValueError, match="does not say which network it belongs to"):
            load(tmp_path, task="image", tune="lora")

    @pytest.mark.parametrize(("missing", "tune"), [("transformers", "full"), ("peft", "lora")])
    def test_an_extra_that_is_not_installed(
        self, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, missing: str, tune: Tune
    ) -> None:
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(ImportError, match=rf"needs {missing}.*'plumbline\[transformers\]'"):
            loaded(folders, "vit", tune)


def test_the_networks_by_name_need_no_extra() -> None:
    code = (
        "import sys, plumbline.models; print({'transformers', 'peft', 'kymatio'} & {*sys.modules})"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
