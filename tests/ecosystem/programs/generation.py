"""generate() with a static cache, greedy and sampled: tokens, and how many graphs they cost."""

import argparse

import torch
from reporting import compiles, report
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    set_seed,
)

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=["gpt2", "llama", "t5"], required=True)
parser.add_argument("--device", default="xla")
options = parser.parse_args()

if options.device == "xla":
    import torch_xla  # noqa: F401

MAKE = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=60, n_positions=64, n_embd=32, n_layer=1, n_head=2)
    ),
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(
            vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
        )
    ),
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(
            vocab_size=60, d_model=32, d_kv=16, d_ff=48, num_layers=1, num_heads=2,
            decoder_start_token_id=0,
        )
    ),
}  # fmt: skip
set_seed(0)
model = MAKE[options.model]().eval().to(options.device)
prompt = torch.arange(8).reshape(2, 4).add(5).to(options.device)


def generate(tokens: int, **how) -> tuple[list[list[int]], int]:
    """Returns the tokens, and how many graphs were compiled for them."""
    before = compiles()
    made = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), min_new_tokens=tokens,
        max_new_tokens=tokens, cache_implementation="static", pad_token_id=1, eos_token_id=2, **how,
    )  # fmt: skip
    return made.tolist(), compiles() - before


greedy, _ = generate(6, do_sample=False)
longer, graphs = generate(12, do_sample=False)
again, graphs_again = generate(12, do_sample=False)
much_longer, graphs_longer = generate(24, do_sample=False)
set_seed(1)
sampled, sampled_graphs = generate(12, do_sample=True, temperature=0.7, top_k=10, top_p=0.9)
set_seed(1)
sampled_again, sampled_again_graphs = generate(
    12, do_sample=True, temperature=0.7, top_k=10, top_p=0.9
)
other, other_graphs = generate(12, do_sample=True, temperature=0.8, top_k=10, top_p=0.9)
report(
    greedy=greedy, longer=longer, again=again, much_longer=much_longer,
    sampled=sampled, sampled_again=sampled_again, other=other,
    graphs=graphs, graphs_again=graphs_again, graphs_longer=graphs_longer,
    sampled_graphs=sampled_graphs, sampled_again_graphs=sampled_again_graphs,
    other_graphs=other_graphs,
)  # fmt: skip
