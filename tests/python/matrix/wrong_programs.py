"""Programs that go wrong, which the runner has to see."""

import os
import time

import torch
from programs import Program


class _Wrong(Program):
    def forward(self, x, i):
        return x @ self.w + (1e-2 if x.device.type == "xla" and i == 2 else 0)


class _Aliases(Program):
    def forward(self, x, i):
        h = x @ self.w
        return h, h[:1].clone() if x.device.type == "xla" else h[:1]


class _Raises(Program):
    def forward(self, x, i):
        if x.device.type == "xla":
            raise RuntimeError("there is no such number")
        return x @ self.w


class _Poisons(Program):
    def forward(self, x, i):
        if x.device.type == "xla":
            torch.optim.SGD.step = None
        return x @ self.w


class _Ends(Program):
    def forward(self, x, i):
        if x.device.type == "xla":
            os.abort()
        return x @ self.w


class _Hangs(Program):
    def forward(self, x, i):
        if x.device.type == "xla":
            time.sleep(1000)
        return x @ self.w
