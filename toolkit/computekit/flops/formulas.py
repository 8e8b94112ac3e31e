"""FLOPs of each ATen operator, from its argument and output shapes.

Three kinds of operator:

* **contractions** (matrix products, convolutions, attention, fused recurrent layers): exact; a multiply-add is two
  FLOPs. This is what papers and model cards mean by a model's FLOPs; half of it are its MACs.
* **other arithmetic** (element-wise, reductions, norms, softmax, pooling): a stated number of FLOPs an element, see
  `PER_ELEMENT`; a transcendental function counts as one.
* **no arithmetic** (views, copies, lookups, comparisons, integer work): zero by nature.

An operator of none of these kinds has no formula; the counter lists it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

Formula = Callable[[Sequence[Any], Any], int]

_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def stored(tensor: Any) -> int:
    """Elements that a tensor holds: all, or of a sparse one those that are not zero."""
    if tensor.layout in _SPARSE:
        tensor = tensor._values() if tensor.layout == torch.sparse_coo else tensor.values()
    return int(tensor.numel())


def _mm(args: Sequence[Any], _out: Any) -> int:
    """(..., m, k) x (..., k, n); of a sparse factor, the stored elements alone."""
    left, right = args[0], args[1]
    if right.layout in _SPARSE:
        return 2 * int(left.shape[-2]) * stored(right)
    return 2 * stored(left) * int(right.shape[-1])


def _addmm(args: Sequence[Any], out: Any) -> int:
    """bias + (m, k) x (k, n); the additions of the bias are not part of the multiply-adds."""
    return _mm(args[1:], out)


def _mv(args: Sequence[Any], _out: Any) -> int:
    return 2 * stored(args[0])


def _addmv(args: Sequence[Any], _out: Any) -> int:
    return 2 * stored(args[1])


def _dot(args: Sequence[Any], _out: Any) -> int:
    return 2 * int(args[0].numel())


def _linear(args: Sequence[Any], out: Any) -> int:
    """(..., k) -> (..., n), whatever form the weights are packed in."""
    return 2 * stored(args[0]) * int(out.shape[-1])


def _trilinear(args: Sequence[Any], _out: Any) -> int:
    """The two products of a bilinear layer, (x W) y; in the backward pass, those of its three gradients.

    All three factors have one axis order, with the axes of ``expand`` missing; those of ``summed`` are summed, where
    the third factor lacks them in the first product.
    """
    lacking, summed = args[3:6], args[6]
    sizes = [1] * (args[0].dim() + len(lacking[0]))
    pair = list(sizes)
    for number, (factor, missing) in enumerate(zip(args[:3], lacking, strict=True)):
        axes = [axis for axis in range(len(sizes)) if axis not in missing]
        for axis, size in zip(axes, factor.shape, strict=True):
            sizes[axis] = max(sizes[axis], int(size))
            pair[axis] = sizes[axis] if number < 2 else pair[axis]
    second = [1 if axis in summed and axis in lacking[2] else size for axis, size in enumerate(sizes)]
    return 2 * (math.prod(pair) + math.prod(second))


def _matmul_backward(args: Sequence[Any], _out: Any) -> int:
    return 2 * _mm(args[1:], None)


def _triangular(args: Sequence[Any], _out: Any) -> int:
    """A triangular system (n, n) and k right-hand sides (n, k): n^2 k."""
    return int(args[0].shape[-1]) * int(args[1].numel())


def _grouped_mm(args: Sequence[Any], out: Any) -> int:
    """Mixture-of-experts product over groups of rows: each row of (m, k) meets one of the g matrices (g, k, n).

    In the backward pass also (k, m) x (m, n) -> (g, k, n), where the m rows are split among the g results.
    """
    left, right = args[0], args[1]
    if left.dim() == right.dim() == 2:
        return 2 * int(left.numel()) * int(right.shape[-1])
    return 2 * int(out.numel()) * int(left.shape[-1])


def conv_flops(x: torch.Size, w: torch.Size, out: torch.Size, transposed: bool = False) -> int:
    """A convolution (N, C_in, *) * (C_out, C_in / groups, *kernel) -> (N, C_out, *); transposed ones run backwards."""
    positions = math.prod(x[2:]) if transposed else math.prod(out[2:])
    return 2 * int(x[0]) * positions * math.prod(w)


def _convolution(args: Sequence[Any], out: Any) -> int:
    return conv_flops(args[0].shape, args[1].shape, out.shape, bool(args[6]))


def _convolution_backward(args: Sequence[Any], _out: Any) -> int:
    """Gradients by input and by weight cost one convolution each; ``output_mask`` says which are wanted."""
    grad, x, w, transposed, mask = args[0], args[1], args[2], bool(args[7]), args[10]
    return conv_flops(x.shape, w.shape, grad.shape, transposed) * (int(mask[0]) + int(mask[1]))


def _quantized_convolution(args: Sequence[Any], out: Any) -> int:
    """``quantized::conv*``, whose weights are packed in an object."""
    dims = out.dim() - 2
    weight = getattr(torch.ops.quantized, f"conv{dims}d_unpack")(args[1])[0]
    return conv_flops(args[0].shape, weight.shape, out.shape)


def attention_flops(q: torch.Size, k: torch.Size, v: torch.Size) -> int:
    """Q K^T and P V over all pairs of positions; q (B, H, L, D), k (B, H_kv, S, D), v (B, H_kv, S, D_v)."""
    return 2 * math.prod(q[:-1]) * int(k[-2]) * (int(q[-1]) + int(v[-1]))


def causal_pairs(length: int, keys: int) -> int:
    """Query-key pairs that a causal mask leaves, aligned at the top left as torch's ``is_causal`` is."""
    square = min(length, keys)
    return square * (square + 1) // 2 + max(length - keys, 0) * keys


def _attention(args: Sequence[Any], _out: Any) -> int:
    return attention_flops(args[0].shape, args[1].shape, args[2].shape)


def _attention_backward(args: Sequence[Any], _out: Any) -> int:
    """Four products (dV, dP, dQ, dK). The fifth that a flash kernel redoes, Q K^T, is recomputation, not gradient."""
    return 2 * attention_flops(args[1].shape, args[2].shape, args[3].shape)


def _flex_attention_backward(args: Sequence[Any], _out: Any) -> int:
    return 2 * attention_flops(args[0].shape, args[1].shape, args[2].shape)


def _mkldnn_rnn_layer(args: Sequence[Any], out: Any) -> int:
    """One direction of one fused LSTM or GRU layer on the CPU: input (T, N, in), weights (gates * hidden, in)."""
    steps, batch = int(args[0].shape[0]), int(args[0].shape[1])
    return 2 * steps * batch * (int(args[1].numel()) + int(args[2].numel()))


def _mkldnn_rnn_layer_backward(args: Sequence[Any], out: Any) -> int:
    return 2 * _mkldnn_rnn_layer(args, out)


def _quantized_rnn(gates: int) -> Formula:
    """``quantized_lstm`` and ``quantized_gru``: input (T, N, in), states (layers * directions, N, hidden)."""

    def formula(args: Sequence[Any], _out: Any) -> int:
        x, state, layers, directions = args[0], args[1], int(args[4]), 2 if args[7] else 1
        hidden = int((state[0] if isinstance(state, (list, tuple)) else state).shape[-1])
        widths = [int(x.shape[-1]), *[directions * hidden] * (layers - 1)]
        cells = sum(gates * hidden * (width + hidden) for width in widths)
        return 2 * int(x.shape[0] * x.shape[1]) * directions * cells

    return formula


CONTRACTIONS: dict[str, Formula] = {
    "mm": _mm,
    "_int_mm": _mm,
    "_scaled_mm": _mm,
    "bmm": _mm,
    "matmul": _mm,
    "matmul_backward": _matmul_backward,
    "addbmm": _addmm,
    "_weight_int8pack_mm": _linear,
    "_weight_int4pack_mm": _linear,
    "_weight_int4pack_mm_for_cpu": _linear,
    "linear_backward": _matmul_backward,
    "addmm": _addmm,
    "_addmm_activation": _addmm,
    "baddbmm": _addmm,
    "_sparse_addmm": _addmm,
    "_trilinear": _trilinear,
    "mv": _mv,
    "addmv": _addmv,
    "dot": _dot,
    "vdot": _dot,
    "linear": _linear,
    "mkldnn_linear": _linear,
    "_grouped_mm": _grouped_mm,
    "linalg_solve_triangular": _triangular,
    "convolution": _convolution,
    "_convolution": _convolution,
    "convolution_overrideable": _convolution,
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_flash_attention_backward": _attention_backward,
    "_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "_scaled_dot_product_cudnn_attention_backward": _attention_backward,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "flex_attention": _attention,
    "flex_attention_backward": _flex_attention_backward,
    **{f"conv{n}d{after}": _quantized_convolution for n in (1, 2, 3) for after in ("", "_relu", "_add", "_add_relu")},
    "linear_relu": _linear,
    "linear_dynamic": _linear,
    "linear_relu_dynamic": _linear,
    "linear_dynamic_fp16": _linear,
    "quantized_lstm": _quantized_rnn(4),
    "quantized_gru": _quantized_rnn(3),
    "mkldnn_rnn_layer": _mkldnn_rnn_layer,
    "mkldnn_rnn_layer_backward": _mkldnn_rnn_layer_backward,
}

PER_ELEMENT: dict[str, int] = {
    "_softmax": 5,  # maximum, subtract, exponential, sum, divide
    "_safe_softmax": 5,
    "_log_softmax": 5,
    "_softmax_backward_data": 4,
    "_log_softmax_backward_data": 4,
    "native_layer_norm": 8,  # mean 1, variance 3, normalise 2, scale and shift 2
    "native_layer_norm_backward": 16,
    "native_group_norm": 8,
    "native_group_norm_backward": 16,
    "_fused_rms_norm": 5,
    "_fused_rms_norm_backward": 10,
    "native_batch_norm": 8,
    "cudnn_batch_norm": 8,
    "miopen_batch_norm": 8,
    "_native_batch_norm_legit": 8,
    "_native_batch_norm_legit_no_training": 4,
    "_batch_norm_with_update": 8,
    "_batch_norm_no_update": 4,
    "native_batch_norm_backward": 16,
    "batch_norm_backward": 16,
    "cudnn_batch_norm_backward": 16,
    "native_dropout": 1,
    "native_dropout_backward": 1,
    "upsample_linear1d": 3,
    "upsample_bilinear2d": 9,
    "upsample_trilinear3d": 21,
    "upsample_bicubic2d": 40,
    "_upsample_bilinear2d_aa": 9,
    "_upsample_bicubic2d_aa": 40,
    "upsample_linear1d_backward": 3,
    "upsample_bilinear2d_backward": 9,
    "upsample_trilinear3d_backward": 21,
    "upsample_bicubic2d_backward": 40,
    "_upsample_bilinear2d_aa_backward": 9,
    "_upsample_bicubic2d_aa_backward": 40,
    "grid_sampler_2d": 9,  # of the bilinear mode
    "grid_sampler_3d": 21,
    "grid_sampler_2d_backward": 18,
    "grid_sampler_3d_backward": 42,
    "glu": 2,
    "glu_backward": 4,
    "_prelu_kernel": 1,
    "_prelu_kernel_backward": 2,
    "rrelu_with_noise": 1,
    "rrelu_with_noise_backward": 1,
    "quantize_per_tensor": 2,
    "quantize_per_tensor_dynamic": 3,
    "quantize_per_channel": 2,
    "dequantize": 2,
    "embedding_renorm_": 1,
    "nll_loss_forward": 1,
    "nll_loss_backward": 1,
    "nll_loss2d_forward": 1,
    "nll_loss2d_backward": 1,
    "mse_loss_backward": 3,
    "embedding_dense_backward": 1,
    "_embedding_bag": 1,
    "_embedding_bag_backward": 1,
    "avg_pool2d_backward": 1,
    "max_pool2d_with_indices_backward": 1,
    "_adaptive_avg_pool2d_backward": 1,
    "adaptive_max_pool2d_backward": 1,
    "cumsum": 1,
    "scatter_add": 1,
    "index_add": 1,
    **{f"{kind}_pad{n}d_backward": 1 for kind in ("reflection", "replication") for n in (1, 2, 3)},
    "floor_divide": 1,
    "cumprod": 1,
    "_weight_norm_interface": 3,  # square and add, scale
    "_weight_norm_interface_backward": 6,
    "hardswish": 4,  # add, clip, multiply, divide
    "polar": 4,  # cosine, sine, two products
    "_thnn_fused_lstm_cell": 9,
    "_thnn_fused_gru_cell": 9,
}
"""FLOPs an element of the larger of the first floating-point input and the first floating-point output."""

REDUCTIONS = {
    "sum", "mean", "var", "std", "var_mean", "std_mean", "prod", "norm", "linalg_vector_norm", "logsumexp", "amax",
    "amin", "max", "min", "avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool2d_with_indices", "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d", "adaptive_max_pool2d", "max_pool3d_with_indices",
    "adaptive_max_pool3d", "fractional_max_pool2d", "fractional_max_pool3d",
}  # fmt: skip
"""One FLOP an element that goes in (variance and deviation: three)."""

NO_ARITHMETIC = {
    "embedding", "index", "index_select", "gather", "index_put", "index_put_", "scatter", "scatter_", "select_scatter",
    "slice_scatter", "select_backward", "slice_backward", "unsqueeze_copy", "cat", "stack", "clone", "copy_", "copy",
    "as_strided_",
    "contiguous", "_to_copy", "to", "unsafe_split", "split", "unsafe_chunk", "constant_pad_nd", "reflection_pad1d",
    "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad3d",
    "replication_pad2d", "roll", "flip", "repeat", "repeat_interleave", "tile", "expand_copy", "permute_copy",
    "_reshape_copy", "_unsafe_view", "resize_", "set_", "lift_fresh", "lift_fresh_copy", "pixel_shuffle",
    "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle", "empty", "empty_like", "empty_strided",
    "empty_permuted", "new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full", "zeros", "zeros_like",
    "ones", "ones_like", "full", "full_like", "fill", "fill_", "zero_", "arange", "linspace", "eye", "scalar_tensor",
    "tril", "triu", "tril_", "triu_", "tril_indices", "bernoulli", "bernoulli_", "rand", "randn", "rand_like",
    "randn_like", "randint", "normal_", "uniform_", "random_", "sort", "topk", "argsort", "argmax", "argmin", "any",
    "all", "nonzero", "masked_select", "unique_consecutive", "_unique2", "searchsorted", "bucketize", "bincount",
    "histc", "one_hot", "unfold_backward", "im2col", "col2im", "_local_scalar_dense", "item", "equal", "is_same_size",
    "_assert_async", "_assert_tensor_metadata", "_has_compatible_shallow_copy_type", "isin", "unbind_copy",
    "split_with_sizes", "split_with_sizes_copy", "unfold", "unfold_copy", "alias_copy", "upsample_nearest2d",
    "upsample_nearest1d", "upsample_nearest3d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d", "hann_window", "hamming_window", "_pack_padded_sequence", "_linalg_check_errors",
    "layout", "sym_size", "sym_numel", "sym_stride",
    "_to_sparse", "_to_sparse_csr", "_sparse_coo_tensor_with_dims_and_tensors",
    "upsample_nearest2d_backward", "_functional_sym_constrain_range_for_size", "sym_constrain_range_for_size",
    "diagonal_copy", "diag_embed", "masked_scatter", "masked_scatter_backward", "conj_physical", "view_as_real_copy",
    "_conj_copy", "polar_copy", "max_pool2d_indices", "nan_to_num_mask", "bitwise_and_", "record_stream", "detach_",
    "_fused_dropout_mask", "index_fill", "index_fill_", "scatter_reduce_mask", "mkldnn_reorder", "to_dense",
    "masked_fill", "multinomial", "cummax", "cummin", "_is_all_true", "_is_any_true",
}  # fmt: skip


def numel(values: Any) -> int:
    """Elements of the first floating-point tensor among ``values``."""
    leaves = values if isinstance(values, (tuple, list)) else (values,)
    for value in leaves:
        if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
            return int(value.numel())
        if isinstance(value, (tuple, list)):
            inner = numel(value)
            if inner:
                return inner
    return 0


def contraction(name: str, args: Sequence[Any], out: Any) -> int | None:
    """Multiply-add FLOPs of a contraction; None for any other operator. A complex product is four real ones."""
    formula = CONTRACTIONS.get(name)
    if formula is None:
        return None
    return formula(args, out) * (4 if isinstance(out, torch.Tensor) and out.is_complex() else 1)


def other(func: Any, name: str, args: Sequence[Any], out: Any) -> int | None:
    """FLOPs of an operator that is no contraction; None where there is no formula."""
    if func.is_view or name in NO_ARITHMETIC:
        return 0
    if name in ("_fft_c2c", "_fft_r2c", "_fft_c2r"):
        return _fft(args, out)
    if name in ("_cdist_forward", "_euclidean_dist"):
        return 3 * int(out.numel()) * int(args[0].shape[-1])
    if name in PER_ELEMENT:
        return PER_ELEMENT[name] * max(numel(args), numel(out))
    if name in REDUCTIONS or torch.Tag.reduction in func.tags:
        return (3 if name.startswith(("var", "std")) else 1) * numel(args)
    if torch.Tag.pointwise in func.tags:
        return numel(out)
    return _derived(name, args, out)


def _fft(args: Sequence[Any], out: Any) -> int:
    """5 n log2 n for each transform of n points (Cooley and Tukey), half of it where one side is real."""
    whole = max((args[0], out), key=lambda t: int(t.numel()))
    points = math.prod(int(whole.shape[d]) for d in args[1])
    both = args[0].is_complex() and out.is_complex()
    return round(5 * int(whole.numel()) * math.log2(max(points, 2)) / (1 if both else 2))


def _derived(name: str, args: Sequence[Any], out: Any) -> int | None:
    """FLOPs of a variant of an operator that has a formula: in place, or the gradient of an element-wise one."""
    if name.endswith("_") and not name.startswith("__"):
        base = getattr(torch.ops.aten, name.rstrip("_"), None)
        if base is not None:
            return other(getattr(base, base.overloads()[0]), name.rstrip("_"), args, out)
    if name.endswith("_backward"):
        base = getattr(torch.ops.aten, name.removesuffix("_backward"), None)
        if base is not None and any(torch.Tag.pointwise in getattr(base, o).tags for o in base.overloads()):
            return 2 * numel(out)  # the derivative, and its product with the gradient
    return None
