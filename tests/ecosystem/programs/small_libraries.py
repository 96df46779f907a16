"""torchmetrics, sentence-transformers and Keras 3 with its torch backend."""

import argparse
import os

import torch
from reporting import end_step, report

parser = argparse.ArgumentParser()
parser.add_argument("library", choices=["torchmetrics", "sentence_transformers", "keras"])
parser.add_argument("--output", required=True)
parser.add_argument("--device", default="xla")
options = parser.parse_args()
if options.device == "xla":
    import torch_xla  # noqa: F401
torch.manual_seed(0)


def torchmetrics() -> dict:
    import torchmetrics as tm

    logits, labels = torch.randn(3, 8, 4), torch.randint(4, (3, 8))
    task = {"task": "multiclass", "num_classes": 4}
    metrics = tm.MetricCollection(
        [
            tm.Accuracy(**task), tm.F1Score(**task, average="macro"), tm.AUROC(**task),
            tm.ConfusionMatrix(**task), tm.CohenKappa(**task), tm.CalibrationError(**task),
        ]
    ).to(options.device)  # fmt: skip
    mean, error = tm.MeanMetric().to(options.device), tm.MeanSquaredError().to(options.device)
    for x, y in zip(logits.to(options.device), labels.to(options.device), strict=True):
        metrics.update(x.softmax(-1), y)
        mean.update(x)
        error.update(x.amax(1), y.float())
    values = [
        v.double().flatten() for v in [*metrics.compute().values(), mean.compute(), error.compute()]
    ]
    return {"numbers": torch.cat([v.cpu() for v in values]).tolist()}


def sentence_transformers() -> dict:
    from sentence_transformers import InputExample, SentenceTransformer, losses, models
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "dog", "sits", "runs", "far"]
    os.makedirs(options.output, exist_ok=True)
    with open(os.path.join(options.output, "vocab.txt"), "w") as file:
        file.write("\n".join(words))
    BertTokenizerFast(os.path.join(options.output, "vocab.txt")).save_pretrained(options.output)
    BertModel(
        BertConfig(
            vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=24, max_position_embeddings=16, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    ).save_pretrained(options.output)  # fmt: skip
    body = models.Transformer(options.output, max_seq_length=8)
    pooling = models.Pooling(body.get_word_embedding_dimension())
    model = SentenceTransformer(modules=[body, pooling], device=options.device)
    texts = ["a cat sits", "a dog runs far", "cat", "dog far"]
    first = model.encode(texts)
    pairs = [
        InputExample(texts=[texts[i], texts[j]], label=float(i == j)) for i, j in ((0, 2), (1, 3))
    ]
    loss_of = losses.CosineSimilarityLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    steps = []
    for _ in range(4):
        features, labels = model.smart_batching_collate(pairs)
        features = [
            {k: v.to(model.device) for k, v in f.items() if torch.is_tensor(v)} for f in features
        ]
        loss = loss_of(features, labels.to(model.device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        end_step()
        steps.append(loss.item())
    model.save(os.path.join(options.output, "saved"))
    again = SentenceTransformer(os.path.join(options.output, "saved"), device=options.device)
    after = model.encode(texts)
    return {
        "numbers": first[:, :3].flatten().tolist() + steps,
        "similarities": model.similarity(after, after).flatten().tolist(),
        "saved": bool((again.encode(texts) == after).all()),
    }


def keras() -> dict:
    os.environ.update(KERAS_BACKEND="torch", KERAS_TORCH_DEVICE=options.device)
    import keras
    import numpy

    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    generator = numpy.random.default_rng(0)
    model.set_weights([generator.normal(size=w.shape) for w in model.get_weights()])
    x = generator.normal(size=(32, 6)).astype("float32")
    history = model.fit(x, x[:, :1], batch_size=8, epochs=3, shuffle=False, verbose=0)
    return {"numbers": history.history["loss"] + model.predict(x[:3], verbose=0).flatten().tolist()}


report(**locals()[options.library]())
