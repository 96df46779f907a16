"""What a random program is made of: lines with holes for operands, one or more for each operator.

A hole is ``{kind}`` or ``{kind:name}``; the same text twice is the same operand:

====== ============================================== ====== =================================
hole   an operand                                     hole   a number
====== ============================================== ====== =================================
``x``  any tensor                                     ``s``  a Python number, any kind
``f``  a tensor of float32, float64, half, bfloat16   ``u``  a small float
``g``  a tensor of float32 or float64                 ``k``  an int, 0 to 3
``i``  a tensor of integers                           ``p``  an int, 1 to 3
``b``  a tensor of bool                               ``e``  -1, 0 or 1
``c``  a complex tensor                               ``d``  a dim of the first operand
``n``  a tensor of integers or floats                 ``t``  "True" or "False"
``z``  a tensor of floats or complex numbers          ``r``  a shape as large as the first operand
``q``  a square matrix, float32 or float64            ``h``  the shape of the first operand
``m``  a matrix of floats                             ``j``  int64 indices within dim 0 of the first
``o``  a tensor that may be written                   ``dt`` a dtype
====== ============================================== ====== =================================

``{y}`` is a tensor of the first operand's shape where there is one, of any dtype; ``{w}`` of its
shape and dtype. What the CPU refuses is dropped, so a template need not fit always. What is
undefined is not here: unstable orders, writes that overlap, floats that no integer holds.
"""

# Elementwise functions: torch.NAME(x), x.NAME_() and out=.
UNARY = {
    "x": "abs square sign sgn positive bitwise_not logical_not isnan isinf isfinite neg negative",
    "n": "ceil floor round trunc signbit deg2rad rad2deg isposinf isneginf",
    "z": "exp sin cos tanh sqrt rsqrt reciprocal sinh cosh atan asinh sigmoid log1p expm1",
    "f": "erf erfc erfinv frac exp2 sinc logit i0 digamma acos asin atanh acosh log log2 log10 tan",
    "g": "special.ndtr special.ndtri special.i0e special.i1 special.i1e special.entr special.erfcx "
    "special.log_ndtr special.bessel_j0 special.bessel_j1 lgamma",
    "c": "real imag angle conj conj_physical resolve_conj view_as_real log",
}
INPLACE_UNARY = set(
    "abs square sign sgn bitwise_not logical_not neg ceil floor round trunc deg2rad rad2deg exp "
    "sin cos tanh sqrt rsqrt reciprocal sinh cosh atan asinh sigmoid log1p expm1 erf erfc "
    "erfinv frac exp2 sinc logit i0 digamma acos asin log log2 log10 tan conj_physical "
    "lgamma".split()
)

# Functions of two tensors or of a tensor and a number.
BINARY = {
    "x": "add sub mul eq ne logical_and logical_or logical_xor div true_divide rsub",
    "n": "maximum minimum fmax fmin gt ge lt le remainder fmod floor_divide copysign atan2 hypot "
    "heaviside nextafter xlogy logaddexp logaddexp2 special.xlog1py special.zeta ldexp",
    "i": "bitwise_and bitwise_or bitwise_xor gcd lcm bitwise_left_shift bitwise_right_shift",
    "b": "bitwise_and bitwise_or bitwise_xor logical_and",
    "z": "pow float_power",
}
INPLACE_BINARY = set(
    "add sub mul div eq ne gt ge lt le logical_and logical_or logical_xor remainder fmod "
    "floor_divide copysign atan2 hypot pow bitwise_and bitwise_or bitwise_xor gcd lcm xlogy "
    "nextafter".split()
)
WITH_NUMBER = set(
    "add sub mul div eq ne gt ge lt le remainder fmod floor_divide pow float_power xlogy copysign "
    "bitwise_and bitwise_or bitwise_xor rsub".split()
)

# Reductions: NAME(x), NAME(x, dim), NAME(x, dim, keepdim).
REDUCE = {
    "x": "sum mean prod all any amax amin count_nonzero",
    "f": "std var logsumexp nanmean nansum",
    "n": "argmax argmin",
    "z": "linalg.vector_norm",
}

TEMPLATES = """
torch.add({x}, {y}, alpha={p})
torch.sub({n}, {y}, alpha={u})
{n}.addcmul({w}, {y}, value={u})
{f}.addcdiv({w}, {w:2}, value={u})
{f}.addcmul_({w}, {w:2}, value={u})
torch.lerp({f}, {w}, {u})
torch.lerp({f}, {w}, {w:2})
torch.clamp({n}, -1, 2)
torch.clamp({n}, min={w})
torch.clamp({n}, {w}, {w:2})
{n}.clamp_(-2, {p})
torch.clamp_min({n}, {u})
torch.where({b}, {x}, {y})
torch.where({b}, {x}, {s})
torch.where({x} != 0, {y}, {x})
torch.masked_fill({x}, {b}, {k})
{x}.masked_fill_({b}, {k})
torch.masked_select({x}, {b}).sum()
torch.masked_scatter({x}, {b}, {w}.expand_as({x}))
torch.nan_to_num({z})
torch.nan_to_num({f}, {u}, {u:2}, {u:3})
torch.isclose({n}, {w})
torch.isin({n}, {w})
torch.polygamma({p}, {g}.abs() + 0.5)
torch.mvlgamma({g}.abs() + 3, {p})
torch.complex({g}, {w})
torch.polar({g}, {w})
torch.view_as_complex(torch.stack([{g}, {w}], -1))
{c}.mH if {c}.dim() > 1 else {c}
{c}.real.mul_({k})
{c}.imag.add_({u})
torch.bucketize({n}, torch.tensor([-1.0, 0.0, 1.5], device={c0}))
torch.searchsorted(torch.sort({f}.reshape(-1))[0], {f}.reshape(-1))
torch.sum({i}, {d}, dtype={dt})
torch.sum({x}, (), keepdim=True)
torch.sum({x}, (0, -1))
torch.mean({z}, (0, -1), True)
torch.any({x}, {d}, keepdim={t})
torch.all({x}, ())
torch.cumsum({x}, {d})
torch.cumsum({n}, {d}, dtype=torch.float64)
torch.cumprod({x}, {d})
{z}.cumsum_({d})
torch.logcumsumexp({z}, {d})
torch.cummax({n}, {d})[0]
torch.cummin({n}, {d})[0]
torch.diff({n}, dim={d})
torch.diff({z}, {k}, {d})
torch.trapezoid({f}, dim={d})
torch.cumulative_trapezoid({f}, dim={d})
torch.gradient({g}, dim={d})[0]
torch.max({n}, {d})[0]
torch.min({n}, {d}, keepdim=True)[0]
torch.max({n})
torch.min({n})
torch.aminmax({n}, dim={d})[1]
torch.median({n})
torch.median({n}, {d})[0]
torch.nanmedian({f}, {d})[0]
torch.mode({n}, {d})[0]
torch.kthvalue({n}, 1, {d})[0]
torch.quantile({g}, 0.3, dim={d})
torch.nanquantile({g}, 0.6, dim={d})
torch.var({z}, {d}, correction={k})
torch.std({f}, {d}, correction={e})
torch.var_mean({f}, {d})[1]
torch.std_mean({f})[0]
torch.norm({f}, {p}, {d})
torch.norm({z})
torch.renorm({g}, 2, 0, 1.5)
torch.dist({f}, {w})
torch.linalg.vector_norm({z}, {k}, {d})
torch.linalg.vector_norm({z}, float("inf"))
torch.linalg.matrix_norm({m}.float())
torch.sort({n}, {d}, stable=True)[0]
torch.sort({n}, stable=True, dim={d}, descending={t})[1]
torch.argsort({n}, {d}, stable=True)
torch.msort({n})
torch.topk({n}, 1, {d})[0]
torch.unique({n}, sorted=True)
torch.unique_consecutive({n})
torch.bincount({i}.abs().clamp(0, 9).reshape(-1))
torch.histc({g}.reshape(-1), 4, -2, 2)
torch.nonzero({x})
torch.argwhere({b})
torch.count_nonzero({x}, {d})
torch.reshape({x}, {r})
{x}.view({r})
{x}.view(-1)
{x}.flatten()
torch.ravel({x})
torch.squeeze({x})
torch.squeeze({x}, {d})
torch.unsqueeze({x}, {d})
torch.transpose({x}, {d}, {d:2})
{x}.t()
{x}.mT
torch.permute({x}, tuple(reversed(range({x}.dim()))))
torch.movedim({x}, {d}, {d:2})
torch.swapaxes({x}, {d}, {d:2})
torch.narrow({x}, {d}, {k}, 1)
torch.select({x}, {d}, {k})
{x}[{k}]
{x}[{k}:]
{x}[..., -1]
{x}[::2]
{x}[:, {k}:]
{x}[None]
{x}[..., None, :]
{x}[{j}]
{x}[:, {j}]
{x}[{b}]
{x}.expand(2, *{h})
{x}.expand_as({y})
torch.broadcast_to({x}, (2, *{h}))
{x}.repeat(2, *([1] * {x}.dim()))
torch.tile({x}, (2,))
torch.repeat_interleave({x}, {p}, {d})
torch.cat([{x}, {y}], {d})
torch.cat([{x}, {w}], 0)
torch.stack([{x}, {w}], {d})
torch.hstack([{x}, {w}])
torch.vstack([{x}, {y}])
torch.dstack([{x}, {w}])
torch.chunk({x}, 2, {d})[0]
torch.split({x}, 1, {d})[-1]
torch.tensor_split({x}, 2, {d})[0]
torch.unbind({x}, {d})[0]
torch.unflatten({x}, {d}, (-1, 1))
torch.flip({x}, ({d},))
torch.fliplr({x})
torch.rot90({x}, {k})
torch.roll({x}, {k}, {d})
torch.roll({x}, {e})
torch.diagonal({x}, {e})
torch.diag({x})
torch.diag_embed({x}, {e})
torch.diagflat({x})
torch.tril({x}, {e})
torch.triu({x}, {e})
{x}.tril_({k})
torch.block_diag({x}, {y})
torch.cartesian_prod({x}.reshape(-1), {w}.reshape(-1))
torch.combinations({x}.reshape(-1)[:4])
torch.meshgrid({x}.reshape(-1), {w}.reshape(-1), indexing="ij")[0]
torch.as_strided({x}, (2, 2), (1, 1))
torch.as_strided({x}, (1, 3), (1, 1), {k})
{x}.unfold({d}, 1, 1)
{x}.unfold(-1, 2, 1)
torch.index_select({x}, 0, {j})
torch.gather({x}, 0, {j}.reshape(-1, *[1] * ({x}.dim() - 1)))
torch.take({x}, {j})
torch.take_along_dim({x}, torch.argsort({x}.real, 0, stable=True), 0)
torch.scatter({x}, 0, torch.zeros(1, *[1] * ({x}.dim() - 1), dtype=torch.int64, device={c0}), {k})
torch.scatter_add({z}, 0, torch.zeros_like({z}, dtype=torch.int64), {w})
torch.scatter_reduce({n}, 0, torch.zeros_like({n}, dtype=torch.int64), {w}, "amax")
torch.scatter_reduce({f}, 0, torch.zeros_like({f}, dtype=torch.int64), {w}, "mean")
torch.index_add({x}, 0, {j}, {x}[{j}])
torch.index_copy({x}, 0, {j}[:1], {x}[{j}[:1]])
torch.index_fill({x}, {d}, {j}, {k})
torch.index_reduce({f}, 0, {j}, {f}[{j}], "amin")
torch.index_put({x}, ({j},), {x}[{j}], accumulate=True)
{x}.index_put_(({j}[:1],), {x}[{j}[:1]] * 2)
{x}.index_add_(0, {j}, {x}[{j}])
torch.select_scatter({x}, {x}.select({d}, 0), {d}, {k})
torch.slice_scatter({x}, {x}.narrow({d}, 0, 1), {d}, 0, 1)
torch.diagonal_scatter({x}, {x}.diagonal({e}), {e})
torch.put({x}, {j}[:1], {x}.reshape(-1)[:1])
{x}.fill_({k})
{x}.zero_()
{x}.copy_({w})
{z}.copy_({w})
{x}[{k}].add_({k})
{x}[{k}:].mul_({p})
{x}[..., -1].zero_()
{x}[0] = {x}[-1].clone()
{x}[{k}:] = {k}
{x}[..., ::2] = 1
{x}[{b}] = {k}
{x}.t().add_({k})
{x}.view(-1)[{k}] = {p}
{x}.diagonal().fill_({k})
{x}.transpose(0, -1)[0].neg_()
{x}.narrow({d}, 0, 1).copy_({x}.narrow({d}, -1, 1).clone())
{x}.unsqueeze(0).squeeze_(0)
{x}.clone().unsqueeze_({d})
{x}.clone().transpose_({d}, {d:2})
{x}.clone()
{x}.contiguous()
{x}.detach()
{x}.to(torch.float64)
{x}.to(torch.bool)
{x}.to(torch.complex64)
{r0}.to(torch.bfloat16)
{r0}.to(torch.float16)
{i}.to(torch.int8)
{i}.to(torch.uint8)
{f}.nan_to_num(0, 9, -9).clamp(-9, 9).to(torch.int32)
{f}.nan_to_num(0, 9, -9).clamp(0, 9).to(torch.uint8)
{x}.view(torch.uint8)
{x}.view(torch.int32)
{i}.type_as({y})
{x}.real
torch.zeros_like({x})
torch.ones_like({x}, dtype={dt})
torch.full_like({x}, {k})
torch.full({h}, {u}, device={c0})
{x}.new_zeros({h})
{x}.new_full((2,), {p})
torch.arange({p}, device={c0}, dtype={dt})
torch.arange(0, 2, 0.5, device={c0})
torch.linspace(0, {p}, 3, device={c0})
torch.logspace(0, 1, 3, device={c0})
torch.eye({p}, {p:2}, device={c0}, dtype={dt})
torch.tril_indices({p}, 3, device={c0})
torch.scalar_tensor({u}, device={c0})
torch.empty(0, dtype={dt}, device={c0})
torch.ones((2, 0), dtype={dt}, device={c0})
torch.vander({n}.reshape(-1)[:3])
torch.matmul({z}, {y}.mT.to({z}.dtype))
torch.mm({m}, {m}.t())
torch.mv({m}, {m}[0])
torch.bmm({f}, {f}.mT)
torch.dot({z}.reshape(-1), {w}.reshape(-1))
torch.vdot({c}.reshape(-1), {w}.reshape(-1))
torch.outer({x}.reshape(-1)[:3], {w}.reshape(-1)[:3])
torch.inner({f}, {w})
torch.kron({x}, {y})
torch.cross({z}[..., :3], {w}[..., :3], dim=-1)
torch.tensordot({z}, {w}, dims=([0], [0]))
torch.einsum("i...,i...->...", {z}, {w})
torch.addmm({m}, {m}, {m}.t() @ {m}, beta={u}, alpha={p})
torch.baddbmm({f}[:, :1, :1], {f}, {f}.mT)
torch.addmv({m}[:, 0], {m}, {m}[0])
torch.addr({m}, {m}[:, 0], {m}[0])
torch.chain_matmul({m}, {m}.t())
torch.linalg.det({q})
torch.linalg.slogdet({q} + 3 * torch.eye({q}.shape[0], device={c0}))[1]
torch.linalg.inv({q} + 9 * torch.eye({q}.shape[0], device={c0}))
torch.linalg.solve({q} + 9 * torch.eye({q}.shape[0], device={c0}), {w})
torch.linalg.cholesky({q} @ {q}.mT + 9 * torch.eye({q}.shape[0], device={c0}, dtype={q}.dtype))
torch.linalg.svdvals({m}.double().nan_to_num(0, 9, -9))
torch.linalg.eigvalsh(({q} + {q}.mT).nan_to_num(0, 9, -9))
torch.linalg.matrix_power({q}, {k})
torch.linalg.multi_dot([{m}, {m}.t(), {m}])
torch.linalg.pinv({q} + 9 * torch.eye({q}.shape[0], device={c0}))
torch.trace({x})
torch.cov({m})
torch.corrcoef({m}.double())
torch.cdist({m}.float(), {m}.float())
F.pdist({m}.float())
F.relu({n})
F.relu6({n})
F.elu({f})
F.celu({f})
F.selu({f})
F.gelu({f})
F.gelu({f}, approximate="tanh")
F.silu({z})
F.mish({f})
F.softplus({f})
F.softsign({n})
F.softshrink({f}, 0.3)
F.hardshrink({f}, {u})
F.hardtanh({n}, -1, 2)
F.hardswish({f})
F.hardsigmoid({f})
F.leaky_relu({f}, 0.1)
F.leaky_relu_({f}, 0.2)
F.relu_({n})
F.threshold({n}, 0, {k})
F.tanhshrink({z})
F.logsigmoid({f})
F.prelu({f}, torch.full((1,), 0.2, device={c0}, dtype={f}.dtype))
F.glu(torch.cat([{f}, {w}], -1))
F.softmax({f}, {d})
F.softmax({n}, {d}, dtype=torch.float32)
F.log_softmax({f}, {d})
F.softmin({f}, {d})
F.normalize({f}, dim={d})
F.layer_norm({f}, {f}.shape[-1:])
F.rms_norm({f}, {f}.shape[-1:])
F.group_norm({f}[None], 1)
F.batch_norm({f}, None, None, training=True)
F.local_response_norm({f}, 2)
F.linear({m}, {m})
F.linear({m}, {m}, {m}[:, 0])
F.bilinear({m}, {m}, torch.ones(2, {m}.shape[1], {m}.shape[1], device={c0}, dtype={m}.dtype))
F.embedding({j}, {m})
F.embedding_bag({j}, {m}.float(), torch.tensor([0], device={c0}), mode="sum")
F.one_hot({i}.abs().clamp(0, 3).long(), 5)
F.mse_loss({f}, {w})
F.l1_loss({z}, {w}, reduction="none")
F.smooth_l1_loss({f}, {w})
F.huber_loss({f}, {w}, delta=0.7)
F.binary_cross_entropy_with_logits({f}, {w}.sigmoid())
F.binary_cross_entropy({g}.sigmoid(), {w}.sigmoid())
F.kl_div({f}, {w}.sigmoid(), reduction="sum")
F.poisson_nll_loss({f}, {w})
F.gaussian_nll_loss({g}, {w}, {w}.abs() + 1)
F.soft_margin_loss({g}, {w}.sign())
F.cosine_similarity({f}, {w}, dim={d})
F.pairwise_distance({g}, {w})
F.triplet_margin_loss({g}, {w}, {w:2})
F.margin_ranking_loss({f}, {w}, {w}.sign())
F.hinge_embedding_loss({f}, {w}.sign())
F.cross_entropy({m}, {m}.argmax(1))
F.nll_loss({m}, {m}.argmax(1), reduction="none")
F.multi_margin_loss({m}.float(), {m}.argmax(1))
F.cross_entropy({m}, {m}.softmax(1), label_smoothing=0.1)
F.pad({x}, ({k}, {p}))
F.pad({x}, ({e}, {e:2}), value={k})
F.pad({f}[None], (1, 1), mode="reflect")
F.pad({f}[None], (1, 0), mode="replicate")
F.pad({x}[None], (1, 1), mode="circular")
F.max_pool1d({f}[None], 2)
F.avg_pool1d({f}[None], 2, padding=1)
F.adaptive_avg_pool1d({f}[None], {p})
F.adaptive_max_pool1d({g}[None], {p})
F.avg_pool2d({f}[None], 2, ceil_mode={t})
F.max_pool2d({f}[None], 2, padding=1)
F.lp_pool1d({g}[None], 2, 2)
F.conv1d({f}[None], {f}.new_ones(2, {f}.shape[0], 1))
F.conv1d({f}[None], {f}.new_ones({f}.shape[0], 1, 2), groups={f}.shape[0], padding=1)
F.conv2d({f}[None], {f}.new_ones(2, {f}.shape[0], 2, 1), stride={p}, padding=1)
F.conv_transpose1d({f}[None], {f}.new_ones({f}.shape[0], 2, 2), stride={p})
F.interpolate({f}[None], scale_factor=2, mode="nearest")
F.interpolate({f}[None], size=3, mode="linear")
F.interpolate({f}[None], size=(3, 2), mode="bilinear", align_corners={t})
F.upsample({f}[None], scale_factor=2)
F.pixel_shuffle({x}.reshape(-1)[:4].reshape(1, 4, 1, 1), 2)
F.pixel_unshuffle({x}.reshape(-1)[:4].reshape(1, 1, 2, 2), 2)
F.channel_shuffle({x}.reshape(-1)[:4].reshape(1, 4, 1, 1), 2)
F.unfold({f}[None, None], 1)
F.unfold({f}[None], (2, 1), padding=1)
F.fold({f}.reshape(-1)[:4].reshape(1, 1, 4), (2, 2), 1)
F.grid_sample({g}[None], torch.zeros(1, 2, 2, 2, device={c0}, dtype={g}.dtype), align_corners={t})
F.affine_grid(torch.ones(1, 2, 3, device={c0}), (1, 1, 2, 2), align_corners={t})
F.scaled_dot_product_attention({f}.tanh().nan_to_num(0), {f}, {w})
F.scaled_dot_product_attention(*[{i}[None].float()] * 3, is_causal=True)
F.dropout({f}, 0.0)
torch.fft.fft({g}, dim={d})
torch.fft.ifft({c}, dim={d})
torch.fft.rfft({g}, dim={d})
torch.fft.irfft({c}, n=4, dim={d})
torch.fft.fftn({c})
torch.fft.fftshift({x})
torch.bitwise_left_shift({i}, {k})
torch.bitwise_right_shift({i}, {k})
{i} << {k}
{i} >> {k}
~{b}
{b} & {b:2}
{b} | ({n} > 0)
{x} == {y}
{n} % 3
{n} // 2.5
{x} * {s}
{s} - {x}
{n} ** {k}
{z} ** {u}
{p} ** {n}
{s} / {z}
{x} + 1j
torch.addcmul({c}, {w}, {w:2}, value=1j)
torch._foreach_add([{f}, {w}], {u})[0]
torch._foreach_mul([{f}, {w}], [{w}, {f}])[1]
torch._foreach_addcmul([{f}], [{w}], [{w:2}], {u})[0]
torch._foreach_sqrt([{g}, {w}])[1]
torch._foreach_norm([{f}, {w}])[0]
torch._foreach_add_([{f}], [{w}], alpha={p})
torch._foreach_mul_([{f}], {u})
torch.nn.utils.parameters_to_vector([{f}, {w}])
torch.equal({x}, {w})
torch.func.vmap(torch.sum)({z})
torch.func.vmap(lambda a: a * {s} + 1)({x})
torch.func.vmap(lambda a, c: a @ c.mT)({f}, {w})
torch.func.vmap(torch.sort, out_dims=0)({n})[0]
torch.func.grad(lambda a: (a * a.sin()).sum())({g})
torch.func.jvp(torch.tanh, ({g},), ({w},))[1]
torch.func.vjp(torch.exp, {g})[1]({w})[0]
torch.func.hessian(lambda a: (a**3).sum())({g}.reshape(-1)[:3])
torch.func.jacrev(torch.sigmoid)({g}.reshape(-1)[:3])
torch.func.jacfwd(torch.cos)({g}.reshape(-1)[:3])
""".strip().splitlines()

# Under autocast to bfloat16: what is done in it. (What is done in float32 is the CPU's own list.)
AUTOCAST = """
F.linear({m}, {m})
torch.mm({m}, {m}.t())
{m} @ {m}.t() + {m}[:, :1]
F.conv1d({f}[None], {f}.new_ones(2, {f}.shape[0], 1))
""".strip().splitlines()


def _templates() -> list[str]:
    lines = list(TEMPLATES)
    for kind, names in UNARY.items():
        for name in names.split():
            lines.append(f"torch.{name}({{{kind}}})")
            if name in INPLACE_UNARY:
                lines.append(f"{{{kind}}}.{name}_()")
            if "." not in name and name not in ("real", "imag", "conj", "view_as_real"):
                lines.append(f"torch.{name}({{{kind}}}, out={{o}})")
    for kind, names in BINARY.items():
        for name in names.split():
            lines.append(f"torch.{name}({{{kind}}}, {{y}})")
            if name in INPLACE_BINARY:
                lines.append(f"{{{kind}}}.{name}_({{y}})")
            if name in WITH_NUMBER:
                lines.append(f"torch.{name}({{{kind}}}, {{s}})")
            if "." not in name and name not in ("rsub", "true_divide"):
                lines.append(f"torch.{name}({{{kind}}}, {{y}}, out={{o}})")
    for kind, names in REDUCE.items():
        for name in names.split():
            lines.append(f"torch.{name}({{{kind}}})")
            if name == "linalg.vector_norm":
                lines.append(f"torch.{name}({{{kind}}}, dim={{d}}, keepdim={{t}})")
            else:
                lines.append(f"torch.{name}({{{kind}}}, {{d}})")
                if name != "count_nonzero":
                    lines.append(f"torch.{name}({{{kind}}}, {{d}}, keepdim=True)")
    for mode in ("floor", "trunc"):
        lines.append(f'torch.div({{n}}, {{y}}, rounding_mode="{mode}")')
        lines.append(f'{{f}}.div_({{w}}, rounding_mode="{mode}")')
    return lines


ALL = _templates()
# Lines whose gradient is asked for, by the first operand.
DIFFERENTIABLE = [
    line
    for line in ALL
    if line.split("{", 1)[-1][:1] in "fgqm"
    and "_(" not in line
    and "out=" not in line
    and "torch.func" not in line
    and "] =" not in line
    and "equal" not in line
]
