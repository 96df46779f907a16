"""Programs that know nothing of xla, for comparing what they do with and without the import."""

import copy
import hashlib
import io
import os
import pickle
import threading

import numpy as np
import torch
from torch import nn


def digest(*values):
    plain = [v.tolist() if isinstance(v, torch.Tensor) else v for v in values]
    return hashlib.sha256(repr(plain).encode()).hexdigest()


def train(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
    return digest(*model.parameters(), optimizer.param_groups[0]["foreach"])


def module_identity():
    model = nn.Linear(2, 2)
    weight = model.weight
    model.double()
    same = model.weight is weight
    model.to("meta")
    return same, model.weight is weight, str(model.weight.dtype)


def sharing():
    x = torch.arange(4.0)
    a, b = copy.deepcopy([x, x[1:]])
    c, d = pickle.loads(pickle.dumps([x, x[1:]]))
    b.zero_(), d.zero_()
    file = io.BytesIO()
    torch.save({"x": x, "y": x[1:]}, file)
    return a.tolist(), c.tolist(), hashlib.sha256(file.getvalue()).hexdigest()


def error(function):
    try:
        return str(function())
    except Exception as e:
        return type(e).__name__ + str(e)


def meta(name, *args):
    x = torch.empty(3, 2, device="meta")
    return error(lambda: getattr(torch, name)(x, *args))


def fork():
    torch.ones(2, requires_grad=True).sum().backward()
    pid = os.fork()
    if pid == 0:
        try:
            torch.ones(2, requires_grad=True).sum().backward()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def backward_thread():
    seen = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: seen.append(threading.get_ident() == threading.main_thread().ident))
    y.sum().backward()
    return seen


def programs():
    torch.manual_seed(3)
    drawn = torch.rand(3)
    return {
        "train": [train(), train(foreach=True), train(fused=True)],
        "module": module_identity(),
        "sharing": sharing(),
        "seeds": digest(drawn, torch.initial_seed(), torch.get_rng_state()),
        "numpy": np.from_dlpack(torch.arange(3)).tolist(),
        "dlpack": [int(v) for v in torch.ones(1).__dlpack_device__()],
        "dlpack capsule": type(torch.utils.dlpack.to_dlpack(torch.ones(1))).__name__,
        "meta": [
            meta("geqrf"),
            meta("fake_quantize_per_tensor_affine", 1.0, 0, 0, 5),
            error(lambda: torch.linalg.lstsq(*[torch.empty(3, 2, device="meta")] * 2)),
        ],
        "foreign": error(lambda: torch.ones(2, device="xpu")),
        "multithreading": torch._C._is_multithreading_enabled(),
        "dtypes": [str(torch.get_default_dtype()), str(torch.get_autocast_dtype("cpu"))],
        "switches": [
            torch.is_grad_enabled(),
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            torch.backends.mkldnn.enabled,
            torch.__future__.get_swap_module_params_on_conversion(),
            torch.__future__.get_overwrite_module_params_on_conversion(),
        ],
        "accelerator": [
            torch.accelerator.is_available(),
            str(torch.accelerator.current_accelerator()),
        ],
        "thread": backward_thread(),
        "fork": fork(),
        "environment": sorted(os.environ),
    }
