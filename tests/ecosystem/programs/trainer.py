"""transformers.Trainer: masked-LM BERT with its defaults, evaluation, checkpoints and resuming."""

import argparse
import math

import torch
from reporting import compiles, report
from transformers import (
    BertConfig,
    BertForMaskedLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

parser = argparse.ArgumentParser()
parser.add_argument("--output", required=True)
parser.add_argument("--resume", action="store_true")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--use-cpu", action="store_true")
parser.add_argument("--torch-compile", action="store_true")
options = parser.parse_args()

VOCABULARY, LENGTH = 64, 12


class Sentences(torch.utils.data.Dataset):
    """Random walks over the vocabulary, with every fourth word to be guessed."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        steps = torch.randint(1, 4, (count, LENGTH), generator=generator)
        self._ids = steps.cumsum(1) % VOCABULARY

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self._ids[index].clone()
        labels = torch.full_like(ids, -100)
        labels[index % 4 :: 4] = ids[index % 4 :: 4]
        ids[index % 4 :: 4] = 0
        return {"input_ids": ids, "labels": labels}


class CountCompiles(TrainerCallback):
    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_step_end(self, *args, **kwargs) -> None:
        self.counts.append(compiles())


def accuracy(prediction) -> dict[str, float]:
    """How many were guessed, and how many were to be: the second counts the samples."""
    asked = prediction.label_ids != -100
    guessed = prediction.predictions.argmax(-1) == prediction.label_ids
    return {
        "samples": len(prediction.label_ids),
        "accuracy": float((guessed & asked).sum() / asked.sum()),
    }


set_seed(0)
model = BertForMaskedLM(
    BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )
)  # fmt: skip
counter = CountCompiles()
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=options.output,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=options.accumulate,
        learning_rate=5e-3,
        warmup_steps=3,
        bf16=options.bf16,
        use_cpu=options.use_cpu,
        torch_compile=options.torch_compile,
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to=[],
        disable_tqdm=True,
        seed=3,
    ),
    train_dataset=Sentences(24, seed=1),
    eval_dataset=Sentences(10, seed=2),
    compute_metrics=accuracy,
    callbacks=[counter],
)
result = trainer.train(resume_from_checkpoint=options.resume)
prediction = trainer.predict(Sentences(6, seed=4))
trainer.save_model(options.output + "/final")
again = BertForMaskedLM.from_pretrained(options.output + "/final")
state = model.state_dict()
history = trainer.state.log_history
report(
    optimizer=trainer.args.optim,
    device=str(trainer.args.device),
    losses=[entry["loss"] for entry in history if "loss" in entry],
    rates=[entry["learning_rate"] for entry in history if "learning_rate" in entry],
    norms=[entry["grad_norm"] for entry in history if "grad_norm" in entry],
    eval_losses=[entry["eval_loss"] for entry in history if "eval_loss" in entry],
    eval_accuracies=[entry["eval_accuracy"] for entry in history if "eval_accuracy" in entry],
    eval_samples=[entry["eval_samples"] for entry in history if "eval_samples" in entry],
    mean_loss=result.training_loss,
    predicted=list(prediction.predictions.shape),
    predict_loss=prediction.metrics["test_loss"],
    saved_equal=all(
        torch.equal(value.cpu(), state[name].cpu()) for name, value in again.state_dict().items()
    ),
    finite=all(math.isfinite(value.sum().item()) for value in state.values()),
    compiles=counter.counts,
)
