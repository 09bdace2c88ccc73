"""Private fine-tuning by the ``Trainer`` of transformers, with LoRA; no download.

A small transformer is built from a config and learns to tell made-up texts apart. What is added to
a usual script is ``PrivateTrainer`` with a method, an epsilon and a delta. Training is stopped half
way, and a second trainer goes on from the output folder, as after a crash. Needs the extra
``transformers``. Takes about half a minute.

    python examples/hf_trainer.py [--steps 40] [--epsilon 8]
"""

import argparse
import tempfile
from typing import Any

import peft
import torch
import transformers

import plumbline as pl
from plumbline.integrations.transformers_trainer import PrivateTrainer

WORDS, LENGTH = 30, 12


class Texts(torch.utils.data.Dataset[dict[str, Any]]):
    """Made-up texts; the class is whether low words outnumber high ones."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, WORDS, (count, LENGTH), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, number: int) -> dict[str, Any]:
        tokens = self.tokens[number]
        label = int((tokens < WORDS // 2).sum() > LENGTH // 2)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": label}


class HalfWay(transformers.TrainerCallback):
    """Stops the training half way."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called after each step."""
        control.should_training_stop = 2 * state.global_step == state.max_steps


def main() -> None:
    """Trains half of the run, goes on with the other half, and says what was spent."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--epsilon", type=float, default=8.0)
    options = parser.parse_args()

    def trainer(folder: str, *callbacks: transformers.TrainerCallback) -> PrivateTrainer:
        torch.manual_seed(0)
        config = transformers.BertConfig(
            vocab_size=WORDS,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=LENGTH,
            num_labels=2,
        )
        lora = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])
        args = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=options.steps,
            per_device_train_batch_size=50,
            gradient_accumulation_steps=4,  # an expected batch of 200, 50 in memory at once
            learning_rate=1e-2,
            logging_steps=max(1, options.steps // 4),
            save_steps=max(1, options.steps // 4),
            eval_strategy="steps",
            eval_steps=max(1, options.steps // 2),
            dataloader_pin_memory=False,
            report_to="none",
            disable_tqdm=True,
        )
        return PrivateTrainer(
            peft.get_peft_model(transformers.BertForSequenceClassification(config), lora),
            args,
            train_dataset=Texts(2000, seed=1),
            eval_dataset=Texts(500, seed=2),
            callbacks=list(callbacks),
            method=pl.methods.dpsgd(clip=1.0),
            epsilon=options.epsilon,
            delta=1e-5,
        )

    with tempfile.TemporaryDirectory() as folder:
        trainer(folder, HalfWay()).train()
        again = trainer(folder)  # as a new process would build it
        done = again.train(resume_from_checkpoint=True)
        spent = again.state.log_history[-1]["epsilon"]
        print(f"{done.global_step} steps, epsilon {spent:.2f}\n")
        print(again.statement())


if __name__ == "__main__":
    main()
