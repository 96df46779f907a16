"""peft: LoRA on a small GPT-2, saved from the device, loaded and merged."""

import argparse

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from reporting import compiles, end_step, report
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--output", required=True)
parser.add_argument("--device", default="xla")
options = parser.parse_args()
if options.device == "xla":
    import torch_xla  # noqa: F401


def base() -> GPT2LMHeadModel:
    set_seed(0)
    sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 32, "n_layer": 1, "n_head": 2}
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **still, bos_token_id=0, eos_token_id=0))


low_rank = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["c_attn"])
model = get_peft_model(base(), low_rank).to(options.device)
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
ids = torch.randint(1, 50, (4, 8)).to(options.device)
losses, counts = [], []
for _ in range(6):
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    end_step()
    losses.append(loss.item())
    counts.append(compiles())
model.save_pretrained(options.output)


@torch.no_grad()
def predict(which: torch.nn.Module) -> torch.Tensor:
    """Without gradients: the loaded model has none to take, and a program that also keeps what the
    backward needs is another one to XLA, equal up to the last bit only."""
    return which(input_ids=ids).logits.cpu()


logits = predict(model.eval())
again = PeftModel.from_pretrained(base(), options.output).to(options.device).eval()
merged = model.merge_and_unload()
merged.save_pretrained(options.output + "/merged")
whole = GPT2LMHeadModel.from_pretrained(options.output + "/merged").to(options.device).eval()
report(
    losses=losses,
    compiles=counts,
    logits=logits[0, -1].tolist(),
    loaded=torch.equal(predict(again), logits),
    merged=torch.allclose(predict(whole), logits, atol=1e-4),
    tied=whole.lm_head.weight is whole.transformer.wte.weight,
)
