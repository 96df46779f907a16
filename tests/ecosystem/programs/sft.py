"""trl: supervised fine-tuning of a small Llama on tokens, with LoRA."""

import argparse

from datasets import Dataset
from peft import LoraConfig
from reporting import compiles, report
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    TrainerCallback,
    set_seed,
)
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--output", required=True)
parser.add_argument("--use-cpu", action="store_true")
options = parser.parse_args()

words = ["<pad>", "<unk>", "</s>", *(f"w{i}" for i in range(40))]
core = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
core.pre_tokenizer = Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=core, pad_token="<pad>", unk_token="<unk>", eos_token="</s>"
)
texts = [" ".join(f"w{(i * 3 + j) % 40}" for j in range(7)) for i in range(16)]
set_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(words), hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32, eos_token_id=2,
        pad_token_id=0, bos_token_id=None,
    )
)  # fmt: skip
counts = []


class CountCompiles(TrainerCallback):
    def on_step_end(self, *args, **kwargs) -> None:
        counts.append(compiles())


trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir=options.output, per_device_train_batch_size=4, num_train_epochs=2,
        learning_rate=1e-2, logging_steps=1, report_to=[], disable_tqdm=True, max_length=16,
        use_cpu=options.use_cpu, bf16=False, gradient_checkpointing=False, save_strategy="no",
    ),
    train_dataset=Dataset.from_dict({"text": texts}),
    processing_class=tokenizer,
    peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0),
    callbacks=[CountCompiles()],
)  # fmt: skip
trainer.train()
report(
    device=trainer.args.device.type,
    losses=[entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
    compiles=counts,
)
