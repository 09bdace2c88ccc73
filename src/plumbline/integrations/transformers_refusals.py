"""What a ``PrivateTrainer`` refuses before anything is charged, each with its reason.

A setting of the ``Trainer`` that would move the weights, choose the records or look at a batch
beside the private step is refused, and so is one that the private step would not follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from accelerate.utils import DynamoBackend
from transformers import DataCollatorWithFlattening, TrainerCallback
from transformers.trainer_pt_utils import AcceleratorConfig

from plumbline.integrations.refusals import PRECISION, SAMPLING, Allowed, refuse_all, refused

_ONE_PROCESS = "start the script with torchrun or accelerate launch instead (docs/distributed.md)"

_ALLOWED: Allowed = {
    "max_grad_norm": (
        (None, 0, 1.0),
        "the method clips every record's gradient: set it there, as in dpsgd(clip=0.5), and leave "
        "this at its default, which is not used",
    ),
    "fp16": ((False,), PRECISION),
    "bf16": ((False,), PRECISION),
    "fp16_full_eval": ((False,), PRECISION),
    "bf16_full_eval": ((False,), PRECISION),
    "torch_compile": ((False,), "nobody can see which records a compiled model mixes"),
    "use_liger_kernel": ((False,), "its fused kernels hide the records' own gradients"),
    "gradient_checkpointing": (
        (False,),
        "it runs parts of the model outside of a record's own run; fewer records are in memory at "
        "once with a smaller per_device_train_batch_size and more gradient_accumulation_steps",
    ),
    "auto_find_batch_size": ((False,), "the batch size is a public constant of the accounting"),
    "train_sampling_strategy": (("random",), SAMPLING),
    "data_seed": ((None,), "give settings={'seed': ...}, and read what the statement says of it"),
    "neftune_noise_alpha": ((None,), "its noise on embeddings is not added here"),
    "label_smoothing_factor": (
        (0,),
        "give loss=nn.CrossEntropyLoss(reduction='none', label_smoothing=...)",
    ),
    "include_num_input_tokens_seen": (("no", False), "how many tokens a batch has is private"),
    "skip_memory_metrics": ((True,), "a step's memory shows how many records it has"),
    "torch_empty_cache_steps": ((None,), "it is not followed here"),
    "ignore_data_skip": ((False,), "a resumed run has no batches to skip"),
    "enable_jit_checkpoint": ((False,), "a killed run goes on from its journal anyway"),
    "push_to_hub": (
        (False,),
        "decide what may leave once the run is over, and upload that: model.push_to_hub(...)",
    ),
    "debug": (("", [], ()), "it hooks into the model's passes"),
    "deepspeed": ((None, ""), _ONE_PROCESS),
    "fsdp": ((None, "", False, [], ()), _ONE_PROCESS),
    "parallelism_config": ((None,), _ONE_PROCESS),
}

_SHARDING = ("DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA")
_OPTIMIZERS = ("lomo", "layerwise", "schedule_free")
_OWN_METHODS = {
    "compute_loss": "give loss= to PrivateTrainer: one loss for each record",
    "training_step": "the only update is private.step",
    "get_train_dataloader": SAMPLING,
    "_get_train_sampler": SAMPLING,
    "get_batch_samples": SAMPLING,
    "_prepare_inputs": "records do not pass through it: use the data set, the collator or loss=",
    "_inner_training_loop": "the only update is private.step",
}
_HOOKS = ("on_pre_optimizer_step", "on_optimizer_step", "on_substep_end")


def refuse(trainer: Any, base: type) -> None:
    """Raises if a setting of the trainer does not go with private training; names all of them."""
    refuse_all(
        "PrivateTrainer",
        [
            *_arguments(trainer.args),
            *_launched(trainer.accelerator),
            *_parts(trainer),
            *_code(trainer, base),
        ],
    )


def _arguments(args: Any) -> Iterator[str]:
    yield from refused(args, _ALLOWED)
    if args.accelerator_config not in (None, AcceleratorConfig()):
        yield f"accelerator_config is {args.accelerator_config}: it forms batches; {SAMPLING}"
    optimizer = str(getattr(args.optim, "value", args.optim))
    if any(part in optimizer for part in _OPTIMIZERS):
        yield f"optim is {optimizer!r}: it needs a backward pass of its own; use adamw_torch or sgd"
    schedule = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    if schedule in ("reduce_lr_on_plateau", "greedy"):
        yield f"lr_scheduler_type is {schedule!r}: a run can only follow a schedule of its steps"
    if args.n_gpu > 1:
        yield f"the trainer would spread each batch over {args.n_gpu} devices: {_ONE_PROCESS}"


def _launched(accelerator: Any) -> Iterator[str]:
    """What ``accelerate launch`` and its variables ask for, beside the arguments."""
    if accelerator.mixed_precision != "no":
        yield f"accelerate's mixed_precision is {accelerator.mixed_precision!r}: {PRECISION}"
    if accelerator.distributed_type.value in _SHARDING:
        yield f"accelerate would use {accelerator.distributed_type.value}: {_ONE_PROCESS}"
    if accelerator.state.dynamo_plugin.backend != DynamoBackend.NO:
        yield f"accelerate would compile the model: {_ALLOWED['torch_compile'][1]}"


def _parts(trainer: Any) -> Iterator[str]:
    optimizer = trainer.optimizer
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        yield f"the optimizer is a {type(optimizer).__name__}: give one torch optimizer"
    if getattr(trainer.model, "is_gradient_checkpointing", False):
        yield f"the model's gradient checkpointing is on: {_ALLOWED['gradient_checkpointing'][1]}"
    if trainer.compute_loss_func is not None:
        yield f"compute_loss_func is given: {_OWN_METHODS['compute_loss']}"
    if isinstance(trainer.data_collator, DataCollatorWithFlattening):
        yield "data_collator packs several records into one: a record would see the others"


def _code(trainer: Any, base: type) -> Iterator[str]:
    for name, reason in _OWN_METHODS.items():
        inherited = getattr(type(trainer), name, None) is getattr(base, name, None)
        if not inherited or name in vars(trainer):
            yield f"{type(trainer).__name__} has a {name} of its own: {reason}"
    for callback in trainer.callback_handler.callbacks:
        for name in _HOOKS:
            if getattr(type(callback), name) is not getattr(TrainerCallback, name):
                yield (
                    f"the callback {type(callback).__name__} has {name}, which is never called: "
                    "gradients are not shown before the update. Use on_step_end"
                )
