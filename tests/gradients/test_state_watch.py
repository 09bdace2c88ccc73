"""What a model may and may not do to itself while it looks at records."""

import functools
import itertools
import logging
import queue
import random
import threading
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from plumbline.gradients.errors import RecordsMixError, UnsupportedModelError
from plumbline.gradients.state_watch import StateWatch

KEPT: list[Any] = []
CALLS = 0
RNG = np.random.default_rng(0)
DRAW = np.random.default_rng(0).random
BITS = np.random.PCG64(0)
STATE = np.random.RandomState(0)
TORCH = torch.Generator()
PYTHON = random.Random(0)
COUNTS = np.zeros(3)


@functools.lru_cache(maxsize=2)
def scale(size: int) -> float:
    """A value that the records of one run would share with those of the next."""
    return float(torch.rand(()) * size)


class Meter:
    """A running mean, as many training scripts have."""

    def __init__(self) -> None:
        self.total = 0.0

    def update(self, value: float) -> None:
        self.total += value


class Data:
    def __init__(self) -> None:
        self.cache: dict[int, int] = {}

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> int:
        self.cache[number] = len(self.cache)
        return number


DATA = Data()
METER = Meter()
METERS = {"a": Meter()}


class Slotted:
    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0.0


def by_default(value: float, state: dict[str, float] = {}) -> None:  # noqa: B006
    state["sum"] = state.get("sum", 0.0) + value


def yielding() -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number


def watch(model: nn.Module, seed: int = 0, **beside: Any) -> StateWatch:
    return StateWatch(model, torch.Generator().manual_seed(seed), **beside)


def passes(model: nn.Module, steps: int = 1, seed: int = 0) -> None:
    """Passes over records, with gradients, while the model is watched."""
    watching = watch(model, seed)
    for _ in range(steps):
        with watching.step():
            model(torch.randn(3, 4)).sum().backward()
        model.zero_grad()


class Model(nn.Module):
    """Does something else beside its work."""

    shared: Any = None

    def __init__(self, beside: Callable[[Any, Tensor], object] = lambda model, x: None) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("scratch", torch.zeros(4), persistent=False)
        self.constant = torch.ones(4)
        self.array = np.zeros(4)
        self.calls, self.mean, self.name, self.size = 0, 0.0, "", (1, 2)
        self.kept: Any = None
        self.history: list[Any] = []
        self.table: dict[str, Any] = {"inner": {"deep": [0]}}
        self.recent: deque[float] = deque(maxlen=2)
        self.names: set[str] = set()
        self.stats = types.SimpleNamespace(mean=0.0)
        self.generator = torch.Generator()
        self.numbers = np.random.default_rng(0)
        self.python = random.Random(0)
        self.counting, self.cycling = itertools.count(), itertools.cycle([1, 2, 3])
        self.yielding, self.listing = yielding(), iter([1, 2, 3])
        self.queue: queue.Queue[int] = queue.Queue()
        self.simple: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.queue.put(0)
        self.simple.put(0)
        self.many, self.large = [0.0] * 2000, np.zeros(20_000)
        self.slotted = Slotted()
        self.hidden = [nn.BatchNorm1d(4)]
        self.log = logging.getLogger("test")
        self.beside = beside

    def forward(self, x: Tensor) -> Tensor:
        self.beside(self, x)
        y: Tensor = self.head(self.frozen(x))
        return y


def put(name: str, value: Callable[[Tensor], Any]) -> Callable[[Any, Tensor], object]:
    return lambda model, x: setattr(model, name, value(x))


def written_by_a_hook(model: Any, x: Tensor) -> None:
    def write(gradient: Tensor) -> None:
        model.seen.copy_(x.mean(0))

    y = model.head(x)
    y.register_hook(write)
    y.sum().backward()


def write_globally(model: Any, x: Tensor) -> None:
    global CALLS
    CALLS += 1


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        pytest.param(lambda m, x: m.seen.add_(x.mean(0)), "buffer 'seen' of the model", id="add_"),
        pytest.param(put("seen", lambda x: x.mean(0)), "buffer 'seen'", id="replaced"),
        pytest.param(lambda m, x: m.scratch.add_(1), "buffer 'scratch'", id="not-persistent"),
        pytest.param(lambda m, x: m.seen.data.add_(x.mean(0)), "buffer 'seen'", id="data"),
        pytest.param(
            lambda m, x: m.seen.numpy().__setitem__(0, 3.0), "buffer 'seen'", id="through-numpy"
        ),
        pytest.param(
            lambda m, x: setattr(m.seen, "data", x.mean(0)), "buffer 'seen'", id="data-replaced"
        ),
        pytest.param(written_by_a_hook, "buffer 'seen'", id="tensor-hook"),
        pytest.param(
            lambda m, x: m.frozen.weight.data.mul_(1.5),
            r"frozen parameter 'weight' of the module 'frozen' \(Linear\).*max_norm",
            id="frozen-data",
        ),
        pytest.param(
            lambda m, x: m.frozen.bias.add_(x.mean()), "frozen parameter 'bias'", id="frozen"
        ),
        pytest.param(
            lambda m, x: setattr(m.head, "bias", nn.Parameter(torch.ones(2))),
            "parameter 'bias' of the module 'head'",
            id="trained-replaced",
        ),
        pytest.param(
            lambda m, x: m.head.weight.detach().add_(1), "The parameter 'weight'", id="trained"
        ),
        pytest.param(put("kept", lambda x: x), "tensor that is kept.*'kept'.*Return", id="kept"),
        pytest.param(lambda m, x: m.constant.add_(1), "tensor that is kept.*'constant'", id="own"),
        pytest.param(lambda m, x: m.history.append(x), "'history'", id="kept-in-a-list"),
        pytest.param(
            lambda m, x: m.table["inner"]["deep"].__setitem__(0, x),
            r"tensor that is kept in the attribute 'table\['inner'\]\['deep'\]\[0\]'",
            id="kept-deep",
        ),
        pytest.param(lambda m, x: setattr(m.head.weight, "kept", x), "'weight'", id="on-a-weight"),
        pytest.param(put("calls", lambda x: 1), "attribute 'calls'.*made-up input", id="counter"),
        pytest.param(put("mean", lambda x: float(x.mean())), "attribute 'mean'", id="float"),
        pytest.param(put("name", lambda x: "seen"), "attribute 'name'", id="string"),
        pytest.param(put("size", lambda x: (2, 1)), r"attribute 'size\[0\]'", id="tuple"),
        pytest.param(put("new", lambda x: 1), "attribute 'new'", id="new-attribute"),
        pytest.param(lambda m, x: m.table.update(k=1), "'table'", id="dict"),
        pytest.param(lambda m, x: m.recent.append(1.0), "'recent'", id="deque"),
        pytest.param(lambda m, x: m.names.add("a"), "'names'", id="set"),
        pytest.param(lambda m, x: m.array.__setitem__(0, 1), "'array'", id="array"),
        pytest.param(lambda m, x: setattr(m.stats, "mean", 1.0), r"'stats\['mean'\]'", id="object"),
        pytest.param(
            lambda m, x: torch.rand(1, generator=m.generator), "'generator'", id="generator"
        ),
        pytest.param(lambda m, x: m.numbers.random(), "'numbers'", id="numpy-generator"),
        pytest.param(lambda m, x: m.python.random(), "'python'", id="python-generator"),
        pytest.param(lambda m, x: m.hidden[0](x), "'hidden", id="module-in-a-list"),
        pytest.param(
            lambda m, x: m.head.register_buffer("late", x), "buffer 'late'", id="new-buffer"
        ),
        pytest.param(
            lambda m, x: KEPT.append(x), "variable 'KEPT' of the Python module", id="global"
        ),
        pytest.param(write_globally, "variable 'CALLS' of the Python module", id="global-counter"),
        pytest.param(lambda m, x: RNG.random(), "variable 'RNG'.*Draw from the", id="global-rng"),
        pytest.param(lambda m, x: DRAW(), "variable 'DRAW'.*Draw from the", id="global-method"),
        pytest.param(lambda m, x: BITS.random_raw(), "'BITS'.*Draw from the", id="global-bits"),
        pytest.param(
            lambda m, x: STATE.rand(), "variable 'STATE'.*Draw from the", id="global-random-state"
        ),
        pytest.param(
            lambda m, x: torch.rand(1, generator=TORCH), "'TORCH'.*Draw from the", id="global-torch"
        ),
        pytest.param(lambda m, x: PYTHON.random(), "'PYTHON'.*Draw from the", id="global-python"),
        pytest.param(lambda m, x: METER.update(1.0), r"'METER\['total'\]'", id="global-object"),
        pytest.param(lambda m, x: METERS["a"].update(1.0), "'METERS", id="global-objects"),
        pytest.param(lambda m, x: COUNTS.__setitem__(0, 1), "'COUNTS'", id="global-array"),
        pytest.param(lambda m, x: setattr(put, "last", 1.0), "'put", id="function-attribute"),
        pytest.param(lambda m, x: by_default(1.0), "'by_default", id="default-argument"),
        pytest.param(lambda m, x: next(m.counting), "'counting", id="count"),
        pytest.param(lambda m, x: next(m.yielding), "'yielding", id="python-iterator"),
        pytest.param(lambda m, x: next(m.cycling), "'cycling", id="cycle"),
        pytest.param(lambda m, x: next(m.listing), "'listing", id="list-iterator"),
        pytest.param(lambda m, x: m.queue.put(m.queue.get() + 1), "'queue", id="queue"),
        pytest.param(lambda m, x: m.simple.put(m.simple.get() + 1), "'simple", id="simple-queue"),
        pytest.param(lambda m, x: m.many.__setitem__(0, 1.0), "'many'", id="long-list"),
        pytest.param(lambda m, x: m.large.__setitem__(9000, 1.0), "'large'", id="large-array"),
        pytest.param(lambda m, x: setattr(m.slotted, "total", 1.0), "'slotted", id="slots"),
        pytest.param(
            lambda m, x: setattr(Model, "shared", x),
            "variable 'shared' of the class Model",
            id="class",
        ),
    ],
)
def test_what_is_refused(beside: Callable[[Any, Tensor], object], message: str) -> None:
    model = Model(beside)

    def guarded(model: Any, x: Tensor) -> None:
        with torch.no_grad() if beside is not written_by_a_hook else torch.enable_grad():
            beside(model, x)

    model.beside = guarded
    try:
        with pytest.raises(RecordsMixError, match=message):
            passes(model, steps=1)
    finally:
        KEPT.clear()
        Model.shared = None


@pytest.mark.parametrize(
    "beside",
    [
        pytest.param(put("size", lambda x: (1, 2)), id="an-equal-tuple"),
        pytest.param(put("mean", lambda x: float(0 * x.mean())), id="an-equal-number"),
        pytest.param(put("table", lambda x: {"inner": {"deep": [0]}}), id="an-equal-dict"),
        pytest.param(lambda m, x: m.log.info("seen"), id="a-logger"),
        pytest.param(lambda m, x: m.eval().train(), id="modes"),
        pytest.param(lambda m, x: torch.rand(1), id="the-global-generator"),
        pytest.param(lambda m, x: m.head.register_forward_hook(print).remove(), id="hooks"),
        pytest.param(lambda m, x: x.add_(1), id="the-input"),
        pytest.param(lambda m, x: random.random() + np.random.rand(), id="functions"),  # noqa: NPY002
        pytest.param(lambda m, x: DATA[0], id="a-data-set-that-keeps-what-it-read"),
    ],
)
def test_what_is_fine(beside: Callable[[Any, Tensor], object]) -> None:
    passes(Model(beside), steps=3)


class SeventhTime:
    """Writes at every seventh pass; how many there were, nobody can see."""

    def __init__(self) -> None:
        self.hidden = threading.local()
        self.hidden.calls = 0

    def __call__(self, model: Any, x: Tensor) -> None:
        self.hidden.calls += 1
        if self.hidden.calls % 7 == 0:
            model.seen.data.copy_(x[0])


def test_a_write_at_every_seventh_pass() -> None:
    model = Model(SeventhTime())
    passes(model, steps=6)
    with pytest.raises(RecordsMixError, match="'seen'"):
        passes(model, steps=1)


def test_a_write_only_when_gradients_are_on() -> None:
    def beside(model: Any, x: Tensor) -> None:
        if torch.is_grad_enabled():
            model.seen.data.copy_(x[0].detach())

    model = Model(beside)
    watching = watch(model)
    with watching.step(), torch.no_grad():
        model(torch.randn(3, 4))
    with pytest.raises(RecordsMixError, match="'seen'"):
        passes(model)


def test_between_passes_the_model_may_be_changed() -> None:
    model = Model()
    watching = watch(model)
    for step in range(3):
        with watching.step():
            model(torch.randn(3, 4))
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers(), model.constant):
                tensor.add_(1)
        model.calls += 1
        model.history.append(step)
        model.kept = torch.ones(step)
        model.array[0] += 1
        model.head = nn.Linear(4, 2)
        model.load_state_dict(model.state_dict())
        watching.check_all()


def test_a_large_frozen_body_is_compared_in_parts_and_as_a_whole() -> None:
    model = nn.Sequential(nn.Linear(1500, 1500), nn.Linear(1500, 2))
    model[0].requires_grad_(False)
    watching = watch(model)
    place = 777
    with pytest.raises(RecordsMixError, match=r"frozen parameter 'weight' of the module '0'"):
        _until_found(watching, lambda: model[0].weight.data.view(-1)[place].add_(1))
    with pytest.raises(RecordsMixError, match=r"frozen parameter 'weight' of the module '0'"):
        watching.check_all()
    watch(model).check_all()


def _until_found(watching: StateWatch, write: Callable[[], object]) -> None:
    for step in range(4):  # 2.25 million elements, a million a step
        with watching.step():
            if step == 0:
                write()


def test_where_the_comparison_starts_depends_on_the_generator() -> None:
    model = nn.Linear(2000, 2000).requires_grad_(False)

    def found_at_once(seed: int) -> bool:
        watching = watch(model, seed)
        try:
            with watching.step():
                model.weight.data[0, 0] += 1
        except RecordsMixError:
            return True
        return False

    assert {found_at_once(seed) for seed in range(12)} == {True, False}


def test_a_trained_weight_written_through_data_is_found_in_time() -> None:
    model = nn.Linear(40, 20)
    watching = watch(model)

    def steps() -> None:
        for _ in range(100):  # one in eight looks, at a few thousand elements
            with watching.step():
                model.weight.data.mul_(1.001)

    with pytest.raises(RecordsMixError, match="The parameter 'weight'"):
        steps()


def test_trained_weights_may_be_moved_where_that_is_said() -> None:
    model = Model()
    watching = watch(model)
    with watching.step(trained=False), torch.no_grad():
        model.head.weight.add_(1)
    with (
        pytest.raises(RecordsMixError, match="buffer 'seen'"),
        watching.step(trained=False),
        torch.no_grad(),
    ):
        model.seen.add_(1)


def test_the_loss_function_is_watched_too() -> None:
    kept: list[Tensor] = []

    def loss(output: Tensor) -> Tensor:
        kept.append(output)
        return output.sum()

    model = nn.Linear(4, 2)
    watching = watch(model, beside=[loss])
    with (
        pytest.raises(RecordsMixError, match="variable 'kept' of the function loss"),
        watching.step(),
    ):
        loss(model(torch.randn(3, 4)))


class CountingLoss:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, output: Tensor) -> Tensor:
        self.calls += 1
        return output.sum() * self.calls


class Around:
    def __init__(self) -> None:
        self.inner = CountingLoss()

    def loss(self, output: Tensor) -> Tensor:
        return self.inner(output)


def closing() -> Callable[[Tensor], Tensor]:
    counting = CountingLoss()
    return lambda output: counting(output)


def nonlocally() -> Callable[[Tensor], Tensor]:
    calls = 0

    def loss(output: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return output.sum() * calls

    return loss


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (CountingLoss(), "'calls' of the object CountingLoss beside the model"),
        (Around().loss, r"'inner\['calls'\]' of the object Around"),
        (functools.partial(lambda state, output: state(output), CountingLoss()), "'calls'"),
        (closing(), r"'counting\['calls'\]' of the function"),
        (nonlocally(), "'calls' of the function loss"),
    ],
    ids=["object", "method", "partial", "closure", "nonlocal"],
)
def test_what_a_loss_keeps(loss: Callable[[Tensor], Tensor], message: str) -> None:
    model = nn.Linear(4, 2)
    watching = watch(model, beside=[loss])
    for _ in range(2):
        with watching.step():
            model(torch.randn(3, 4))
    with pytest.raises(RecordsMixError, match=message), watching.step():
        loss(model(torch.randn(3, 4)))


def test_a_loss_from_a_string_is_watched_too() -> None:
    names: dict[str, Any] = {"__name__": None}
    exec("kept = []\ndef loss(output):\n    kept.append(output)\n    return output.sum()", names)
    model = nn.Linear(4, 2)
    watching = watch(model, beside=[names["loss"]])
    with pytest.raises(RecordsMixError, match="variable 'kept'"), watching.step():
        names["loss"](model(torch.randn(3, 4)))


def test_a_loss_module_is_watched_too() -> None:
    model, loss = nn.Linear(4, 2), Model(put("mean", lambda x: float(x.mean())))
    watching = watch(model, beside=[loss])
    with pytest.raises(RecordsMixError, match="'mean' of the module Model"), watching.step():
        loss(torch.randn(3, 4))


def test_an_error_of_the_pass_itself_is_told_as_it_is() -> None:
    model = Model()
    watching = watch(model)

    def fails() -> None:
        model.calls += 1
        raise KeyError

    with pytest.raises(KeyError), watching.step():
        fails()


def test_every_dtype_and_layout() -> None:
    model = nn.Module()
    dtypes = (torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float64, torch.complex64)
    for dtype in dtypes:
        model.register_buffer(_of(dtype), torch.ones(3, dtype=dtype))
    model.register_buffer("turned", torch.ones(3, 2).t())
    model.register_buffer("none", None)
    model.register_buffer("empty", torch.ones(0))
    model.register_buffer("number", torch.tensor(1.0))
    with torch.inference_mode():
        model.inferred = torch.ones(2)
    with watch(model).step():
        pass
    for name in [*map(_of, dtypes), "turned", "number"]:
        watching = watch(model)
        with pytest.raises(RecordsMixError, match=f"'{name}'"), watching.step():
            getattr(model, name).data.zero_()


def _of(dtype: torch.dtype) -> str:
    return f"of_{str(dtype)[6:]}"


def lstm() -> tuple[nn.Module, Tensor]:
    return nn.LSTM(4, 3, num_layers=2, bidirectional=True), torch.randn(2, 3, 4)


def transformer() -> tuple[nn.Module, Tensor]:
    return nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), torch.randn(2, 3, 4)


def weight_norm() -> tuple[nn.Module, Tensor]:
    return nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)), torch.randn(2, 4)


def older_weight_norm() -> tuple[nn.Module, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(nn.Linear(4, 2)), torch.randn(2, 4)


def orthogonal() -> tuple[nn.Module, Tensor]:
    return nn.utils.parametrizations.orthogonal(nn.Linear(4, 2)), torch.randn(2, 4)


def frozen_batch_norm() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2), nn.Dropout())
    model[0].eval()
    return model, torch.randn(2, 4)


SMALL = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8}


def hugging_face(kind: str) -> tuple[nn.Module, Tensor]:
    import transformers

    tokens = torch.arange(6).view(2, 3)
    if kind == "bert":
        config: Any = transformers.BertConfig(vocab_size=10, intermediate_size=8, **SMALL)
        return transformers.BertForSequenceClassification(config), tokens
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=10, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
        return transformers.GPT2LMHeadModel(config), tokens
    if kind == "llama":
        config = transformers.LlamaConfig(vocab_size=10, intermediate_size=8, **SMALL)
        return transformers.LlamaForCausalLM(config), tokens
    config = transformers.ViTConfig(image_size=8, patch_size=4, intermediate_size=8, **SMALL)
    return transformers.ViTForImageClassification(config), torch.randn(2, 3, 8, 8)


@pytest.mark.parametrize(
    "build",
    [
        lstm,
        transformer,
        weight_norm,
        older_weight_norm,
        orthogonal,
        frozen_batch_norm,
        *(
            pytest.param(lambda kind=kind: hugging_face(kind), id=kind)
            for kind in ("bert", "gpt2", "llama", "vit")
        ),
    ],
)
def test_common_models_keep_nothing(build: Callable[[], tuple[nn.Module, Tensor]]) -> None:
    model, x = build()
    watching = watch(model)
    for _ in range(2):
        with watching.step():
            output = model(x)
            logits = getattr(output, "logits", output)
            (logits[0] if isinstance(logits, tuple) else logits).sum().backward()
        model.zero_grad()
    watching.check_all()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2)), "buffer '_u'"),
        (nn.utils.spectral_norm(nn.Linear(4, 2)), "buffer 'weight_u'"),
        (nn.BatchNorm1d(4), "buffer 'num_batches_tracked'.*GroupNorm"),
    ],
    ids=["spectral-norm", "older-spectral-norm", "batch-norm"],
)
def test_layers_that_count_or_average_are_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(RecordsMixError, match=message):
        passes(model)


class Positions(nn.Module):
    """Fills a table of positions when it is first used, as rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.table = nn.Linear(4, 2), None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(x.shape[1])
        y: Tensor = self.head(x + self.table)
        return y


def test_a_cache_is_to_be_filled_before_the_training() -> None:
    with pytest.raises(RecordsMixError, match="kept in the attribute 'table'"):
        passes(Positions())
    model = Positions()
    model(torch.zeros(1, 4))
    passes(model, steps=2)


def test_a_cached_function_computes_nothing_for_a_record() -> None:
    scale.cache_clear()
    model = Model(lambda model, x: scale(x.shape[1]))
    with pytest.raises(RecordsMixError, match="'scale' of the Python module"):
        passes(model)
    passes(model, steps=2)  # what was there before may be used
    for size in (7, 8):  # a full cache counts too
        scale(size)
    with pytest.raises(RecordsMixError, match="'scale' of the Python module"):
        passes(model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("compiled", [torch.jit.script, lambda m: torch.jit.trace(m, _input())])
def test_torch_script_is_refused_clearly(compiled: Callable[[nn.Module], nn.Module]) -> None:
    part = compiled(nn.Linear(4, 2))
    with pytest.raises(UnsupportedModelError, match="The model is a TorchScript module"):
        watch(part)
    with pytest.raises(UnsupportedModelError, match="module '0' is a TorchScript module"):
        watch(nn.Sequential(part))
    with pytest.raises(UnsupportedModelError, match="TorchScript"):
        watch(nn.Linear(4, 2), beside=[part])


def _input() -> Tensor:
    return torch.zeros(1, 4)
