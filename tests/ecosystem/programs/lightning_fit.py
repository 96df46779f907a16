"""Lightning: fit, validate, a checkpoint and going on from it."""

import argparse
import os

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from reporting import compiles, report
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--output", required=True)
parser.add_argument("--accelerator", default="tpu")
parser.add_argument("--devices", type=int, default=1)
parser.add_argument("--profiler")
options = parser.parse_args()


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
        self.losses: list[torch.Tensor] = []
        self.counts: list[int] = []

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        self.losses.append(loss.detach())
        return loss

    def on_train_batch_end(self, *args) -> None:
        self.counts.append(compiles())

    def validation_step(self, batch, index):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(x), y), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def loader() -> torch.utils.data.DataLoader:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(32, 6, generator=generator)
    targets = (inputs[:, :3] * inputs[:, 3:]).sum(1).gt(0).long()
    data = torch.utils.data.TensorDataset(inputs, targets)
    return torch.utils.data.DataLoader(data, batch_size=8 // options.devices)


def trainer(epochs: int, **more) -> L.Trainer:
    return L.Trainer(
        accelerator=options.accelerator, devices=options.devices, max_epochs=epochs,
        default_root_dir=options.output, logger=False, enable_progress_bar=False,
        enable_model_summary=False, **more,
    )  # fmt: skip


def main() -> None:
    L.seed_everything(0)
    model = Classifier()
    saved = ModelCheckpoint(dirpath=options.output, filename="{epoch}", save_top_k=-1)
    first = trainer(2, callbacks=[saved], profiler=options.profiler)
    first.fit(model, loader(), loader())
    checkpoint = os.path.join(options.output, "epoch=0.ckpt")
    again = Classifier()
    trainer(2, enable_checkpointing=False).fit(again, loader(), loader(), ckpt_path=checkpoint)
    devices = {p.device.type for p in model.parameters()}
    report(
        strategy=type(first.strategy).__name__,
        devices=sorted(devices),
        losses=[loss.item() for loss in model.losses],  # replicas keep theirs
        resumed=[loss.item() for loss in again.losses],
        val_loss=first.callback_metrics["val_loss"].item(),
        compiles=model.counts,
        keys=sorted(torch.load(checkpoint, weights_only=False)["state_dict"]),
    )


if __name__ == "__main__":
    main()
