"""Expressions of the names that the facade has by hand, and what Python's torch has in their place.

Each is of two tensors, an integer and a number. They are compiled on the facade, and their results are compared with
Python's expression here and with those of torch's own headers by `python tests/facade differential`, in each of
settings.SETTINGS. None: Python has nothing of the kind.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from facade.outcomes import of_call
from facade.settings import SETTINGS

OF_TENSORS: tuple[tuple[str, str | None], ...] = (
    ("x.dim()", "x.dim()"),
    ("x.ndimension()", "x.ndimension()"),
    ("x.numel()", "x.numel()"),
    ("x.sizes().vec()", "list(x.size())"),
    ("x.strides().vec()", "list(x.stride())"),
    ("x.size(i)", "x.size(i)"),
    ("x.stride(i)", "x.stride(i)"),
    ("x.storage_offset()", "x.storage_offset()"),
    ("x.scalar_type()", "x.dtype"),
    ("std::string(x.dtype().name())", None),
    ("(int64_t)x.itemsize()", "x.itemsize"),
    ("x.element_size()", "x.element_size()"),
    ("(int64_t)x.nbytes()", "x.nbytes"),
    ("x.device().str()", "str(x.device)"),
    ("(int64_t)x.get_device()", "x.get_device()"),
    ("x.layout() == at::kStrided", "x.layout == torch.strided"),
    ("x.is_cpu()", "x.is_cpu"),
    ("x.is_cuda() || x.is_xpu() || x.is_mps() || x.is_hpu() || x.is_xla() || x.is_hip()", "False"),
    ("x.is_meta() || x.is_privateuseone()", "x.is_meta"),
    ("x.is_sparse() || x.is_sparse_csr() || x.is_mkldnn()", "x.is_sparse or x.is_mkldnn"),
    ("x.is_floating_point()", "x.is_floating_point()"),
    ("x.is_complex()", "x.is_complex()"),
    ("x.is_signed()", "x.is_signed()"),
    ("x.is_contiguous()", "x.is_contiguous()"),
    ("x.is_contiguous(at::MemoryFormat::ChannelsLast)", "x.is_contiguous(memory_format=torch.channels_last)"),
    ("x.is_contiguous(at::MemoryFormat::ChannelsLast3d)", "x.is_contiguous(memory_format=torch.channels_last_3d)"),
    ("x.type().scalarType()", "x.dtype"),
    ("torch::ones({2, 3}, x.options())", "torch.ones((2, 3), dtype=x.dtype, device=x.device)"),
    ("torch::zeros({2}, x.type())", None),
    (
        "torch::zeros_like(x, torch::CPU(at::kByte))",
        "torch.zeros_like(x, dtype=torch.uint8, layout=torch.strided, device='cpu')",
    ),
    ("torch::ones_like(x, at::kCPU)", "torch.ones_like(x, device='cpu')"),
    ("x.new_zeros({2}, at::kCPU)", "x.new_zeros((2,), device='cpu')"),
    ("x.new_ones({2}, at::kMeta)", "x.new_ones((2,), device='meta')"),
    ("x.new_full({2}, i, at::kCPU)", "x.new_full((2,), i, device='cpu')"),
    ("torch::full_like(x, i, at::kCPU)", "torch.full_like(x, i, device='cpu')"),
    ("torch::zeros({2}, at::device(at::kCPU).layout(at::kStrided))", "torch.zeros(2, device='cpu')"),
    ("torch::eye(2, at::device(at::kMeta).dtype(at::kInt))", "torch.eye(2, device='meta', dtype=torch.int)"),
    ("x.requires_grad()", "x.requires_grad"),
    ("x.is_leaf()", "x.is_leaf"),
    ("x._version()", "x._version"),
    ("x.is_conj() || x.is_neg()", "x.is_conj() or x.is_neg()"),
    ("x.is_inference()", "x.is_inference()"),
    ("x.std(0)", "x.std(0)"),
    ("x.var(int(i))", "x.var(i)"),
    ("at::var(x, 0) + at::std(x, at::IntArrayRef({0}))", "torch.var(x, 0) + torch.std(x, (0,))"),
    ("torch::std_mean(x, 0)", "torch.std_mean(x, 0)"),
    (
        "at::var_mean(x, at::IntArrayRef({0, 1}), at::Scalar(0), true)",
        "torch.var_mean(x, (0, 1), correction=0, keepdim=True)",
    ),
    ("at::conj(x) + x.conj()", "torch.conj(x) + x.conj()"),
    ("at::numel(x) + at::size(x, -1) + at::stride(x, -1)", "x.numel() + x.size(-1) + x.stride(-1)"),
    ("at::is_complex(x) + 2 * at::is_floating_point(x)", "torch.is_complex(x) + 2 * torch.is_floating_point(x)"),
    ("x.detach()", "x.detach()"),
    ("x.clone().set_requires_grad(i > 0)", None),
    ("x.detach().requires_grad_()", None),
    ("x.contiguous()", "x.contiguous()"),
    ("x.item().toDouble()", None),
    ("x.item<double>()", None),
    ("x.item<int64_t>()", None),
    ("x.to(at::kDouble)", "x.to(torch.double)"),
    ("x.to(at::kInt, false, true)", "x.to(torch.int, copy=True)"),
    ("x.to(at::Device(at::kCPU), at::kFloat)", "x.to('cpu', torch.float)"),
    ("x.to(at::TensorOptions(at::kHalf))", "x.to(torch.half)"),
    ("x.to(at::kMeta)", "x.to('meta')"),
    ("x.to(y)", "x.to(y)"),
    ("x.to(x.dtype())", "x.to(x.dtype)"),
    ("x.toType(at::kBFloat16)", "x.to(torch.bfloat16)"),
    ("x.cpu()", "x.cpu()"),
    ("x.meta()", "x.to('meta')"),
    ("x.clone().copy_(y)", "x.clone().copy_(y)"),
    ("x.set_()", "x.set_()"),
    ("x.set_(y)", "x.set_(y)"),
    ("x.clone().set_(y)", "x.clone().set_(y)"),
    ("-x", "-x"),
    ("~x", "torch.bitwise_not(x)"),
    ("x[i]", "x[i]"),
    ("x[at::Scalar(i)]", "x[i]"),
    ("x[y.argmax()]", "x[y.argmax()]"),
    ("x.index({i})", "x[i]"),
    ("x.index({torch::indexing::Slice(), i})", "x[:, i]"),
    ("x.index({torch::indexing::Slice(0, 3, 2), torch::indexing::None})", "x[0:3:2, None]"),
    ("x.index({torch::indexing::Slice(i, torch::indexing::None)})", "x[i:]"),
    ("x.index({torch::indexing::Ellipsis, torch::indexing::Slice(torch::indexing::None, i)})", "x[..., :i]"),
    ("x.index({torch::tensor({0, 1})})", "x[torch.tensor([0, 1])]"),
    ("x.index({x == x})", "x[x == x]"),
    ("x.index({true})", "x[True]"),
    ("x.clone().index_put_({torch::indexing::Slice(), 0}, y.sum())", None),
    ("x.clone().index_put_({i}, d)", None),
    ("x.clone().index_put_({torch::tensor({0, 0})}, y[0])", None),
    ("x.index(c10::List<std::optional<at::Tensor>>({y.argmax()}))", "torch.ops.aten.index(x, [y.argmax()])"),
    ("(x.clone() += y)", "x.clone().add_(y)"),
    ("(x.clone() -= y)", "x.clone().sub_(y)"),
    ("(x.clone() *= y)", "x.clone().mul_(y)"),
    ("(x.clone() /= y)", "x.clone().div_(y)"),
    ("(x.clone() &= y)", "x.clone().bitwise_and_(y)"),
    ("(x.clone() |= y)", "x.clone().bitwise_or_(y)"),
    ("(x.clone() ^= y)", "x.clone().bitwise_xor_(y)"),
    ("(x.clone() += d)", "x.clone().add_(d)"),
    ("(x.clone() -= d)", "x.clone().sub_(d)"),
    ("(x.clone() *= d)", None),
    ("(x.clone() /= d)", "x.clone().div_(d)"),
    ("x + y", "x + y"),
    ("x - y", "x - y"),
    ("x * y", "x * y"),
    ("x / y", "x / y"),
    ("x % y", "torch.remainder(x, y)"),
    ("x & y", "x & y"),
    ("x | y", "x | y"),
    ("x ^ y", "x ^ y"),
    ("x == y", "x == y"),
    ("x != y", "x != y"),
    ("x < y", "x < y"),
    ("x <= y", "x <= y"),
    ("x > y", "x > y"),
    ("x >= y", "x >= y"),
    ("x + d", "x + d"),
    ("x - d", "x - d"),
    ("x * d", "x * d"),
    ("x / d", "x / d"),
    ("x % d", "torch.remainder(x, d)"),
    ("x == d", "torch.eq(x, d)"),
    ("x < d", "torch.lt(x, d)"),
    ("x & i", "x & i"),
    ("x | i", "x | i"),
    ("x ^ i", "x ^ i"),
    ("d + x", "d + x"),
    ("d - x", None),
    ("d * x", "d * x"),
    ("d / x", None),
    ("d % x", None),
    ("x + i", "x + i"),
    ("x - i", "x - i"),
    ("x * i", "x * i"),
    ("(x.clone() += i)", "x.clone().add_(i)"),
    ("x.t() + y", "x.t() + y"),
    ("x.add(y, i)", "x.add(y, alpha=i)"),
    ("d > x", "x < d"),
    ("d == x", "x == d"),
    ("torch::tensor({1, 2, 3})", "torch.tensor([1, 2, 3])"),
    ("torch::tensor({1.5, 2.0})", "torch.tensor([1.5, 2.0])"),
    ("torch::tensor({1, 2, 3}) * d", "torch.tensor([1, 2, 3]) * d"),
    ("torch::tensor(d)", "torch.tensor(d)"),
    ("torch::tensor(i)", "torch.tensor(i)"),
    ("torch::tensor({{1, 2}, {3, 4}})", "torch.tensor([[1, 2], [3, 4]])"),
    ("torch::tensor(std::vector<double>{d, 1}, x.options())", None),
    ("torch::tensor({true, false})", "torch.tensor([True, False])"),
    ("torch::tensor({{true, false}})", "torch.tensor([[True, False]])"),
    ("torch::tensor({{{1, 2}}, {{3, 4}}})", "torch.tensor([[[1, 2]], [[3, 4]]])"),
    ("torch::tensor({{{{1.5}, {2.5}}}}, at::kDouble)", "torch.tensor([[[[1.5], [2.5]]]], dtype=torch.double)"),
    ("torch::fft::fft(x)", "torch.fft.fft(x)"),
    (
        'torch::fft::irfft(torch::fft::rfft(x, 4), 4, -1, "ortho")',
        "torch.fft.irfft(torch.fft.rfft(x, 4), 4, -1, 'ortho')",
    ),
    ("torch::fft::rfftn(x, {{2, 4}}, {{0, 1}})", "torch.fft.rfftn(x, (2, 4), (0, 1))"),
    ("torch::fft::ifft2(x)", "torch.fft.ifft2(x)"),
    ("torch::fft::fftshift(x)", "torch.fft.fftshift(x)"),
    ("torch::fft::rfftfreq(5, d, at::kDouble)", "torch.fft.rfftfreq(5, d, dtype=torch.double)"),
    ("torch::full({2}, d)", "torch.full((2,), d)"),
    ("torch::full({2}, i, x.options())", "torch.full((2,), i, dtype=x.dtype, device=x.device)"),
    ("torch::arange(i + 3)", "torch.arange(i + 3)"),
    ("torch::arange(1, 7, 2, x.options())", "torch.arange(1, 7, 2, dtype=x.dtype, device=x.device)"),
    ("torch::scalar_tensor(d)", "torch.scalar_tensor(d)"),
    ("x.addmm(y, y)", None),
    ("x.pow(2)", "x.pow(2)"),
    ("x.clamp(-0.5, 0.5)", "x.clamp(-0.5, 0.5)"),
    ("x.clamp_min(0)", "x.clamp_min(0)"),
    ("x.clamp_max(true)", "x.clamp_max(True)"),
    ("x.clamp(false, true)", "x.clamp(False, True)"),
    ("torch::softshrink(x, 1e30) == 0", "torch.nn.functional.softshrink(x, 1e30) == 0"),
    ("torch::addr(x, y[0], y[0], true)", "torch.addr(x, y[0], y[0], beta=True)"),
    ("torch::addmv(x.select(1, 0), y, y[0], 1, 1e30).isnan()", "torch.addmv(x[:, 0], y, y[0], alpha=1e30).isnan()"),
    ("x.masked_fill(y > 0, d)", "x.masked_fill(y > 0, d)"),
    ("torch::where(x > 0, x, d)", "torch.where(x > 0, x, d)"),
    ("torch::empty_like(x).fill_(i)", "torch.empty_like(x).fill_(i)"),
    ("x.new_full({2}, i)", "x.new_full((2,), i)"),
    ("x.fill_(i)", "x.fill_(i)"),
    ("x.size(-3)", "x.size(-3)"),
    ("x.sum()", "x.sum()"),
    ("x.mean(0)", "x.mean(0)"),
    ("x.norm()", "torch.ops.aten.norm.Scalar(x, 2)"),
    ("x.norm(2, 0)", "torch.ops.aten.norm.ScalarOpt_dim(x, 2, [0])"),
    ("torch::norm(x, 2, {0, -1}, true)", "torch.ops.aten.norm.ScalarOpt_dim(x, 2, [0, -1], True)"),
    ("x.norm(at::nullopt, {0}, false, at::kDouble)", None),
    ("x.norm(2, at::kDouble)", None),
    ("torch::cat({x, y}, 0)", "torch.cat((x, y), 0)"),
    ("torch::stack({x, y})", "torch.stack((x, y))"),
    ("torch::matmul(x, y)", "torch.matmul(x, y)"),
    ("torch::linear(x, y)", "torch.nn.functional.linear(x, y)"),
    ("std::get<0>(x.max(0))", "x.max(0).values"),
    ("std::get<1>(x.sort(0, true))", "x.sort(0, True).indices"),
    ("x.view({-1})", "x.view(-1)"),
    ("x.reshape({i, -1})", "x.reshape(i, -1)"),
    ("x.transpose(0, i)", "x.transpose(0, i)"),
    ("x.select(0, i)", "x.select(0, i)"),
    ("x.relu_()", "x.relu_()"),
    ("x.softmax(-1)", "x.softmax(-1)"),
    ("x.expand({2, 3, 4})", "x.expand(2, 3, 4)"),
    ("torch::conv1d(x, y)", "torch.conv1d(x, y)"),
)
OF_VALUES: tuple[tuple[str, str | None], ...] = (
    ("at::Scalar(d).toInt()", None),
    ("(int64_t)at::Scalar(d * 1e6).toChar()", None),
    ("(int64_t)at::Scalar(255).toByte() + at::Scalar(127).toChar()", "255 + 127"),
    (
        "at::parallel_reduce(0, 100, 3, int64_t{0}, [](int64_t b, int64_t e, int64_t s) { return s + e - b; }, "
        "std::plus<int64_t>())",
        "100",
    ),
    ("(int64_t)at::Scalar(i).toByte() + at::Scalar(i).toShort() + at::Scalar(i).toLong()", None),
    ("(double)at::Scalar(d).toFloat() + (double)at::Scalar(d).toHalf() + (double)at::Scalar(d).toBFloat16()", None),
    ("at::Scalar(i > 0).toBool()", None),
    ("at::Scalar(c10::complex<double>(d, 1)).toComplexDouble()", None),
    ("c10::complex<double>(at::Scalar(d).toComplexFloat())", None),
    ("at::Scalar(c10::complex<double>(d, 1)).toDouble()", None),
    ("at::Scalar(d).equal(2) + 2 * at::Scalar(i).equal(d) + 4 * at::Scalar(true).equal(true)", None),
    ("(-at::Scalar(d)).to<double>()", None),
    ("at::Scalar(d).type()", None),
    ("at::Scalar(d).isFloatingPoint() + 2 * at::Scalar(i).isIntegral(false) + 4 * at::Scalar(true).isBoolean()", None),
    ("at::Scalar(true).isIntegral(true) && !at::Scalar(true).isIntegral(false) && !at::Scalar(d).isComplex()", None),
    ("c10::str(at::Scalar(d), at::Scalar(i), at::Scalar(true), x.sizes(), x.device(), x.dtype())", None),
    ("at::elementSize(x.scalar_type()) + (at::isFloatingType(x.scalar_type()) ? 100 : 0)", None),
    ("at::isComplexType(x.scalar_type()) || at::isIntegralType(x.scalar_type(), true)", None),
    ("at::isReducedFloatingType(x.scalar_type())", None),
    ("at::toComplexType(x.scalar_type())", None),
    ("at::toRealValueType(x.scalar_type())", None),
    ("at::typeMetaToScalarType(at::scalarTypeToTypeMeta(x.scalar_type()))", None),
    ("std::string(c10::toString(x.scalar_type()))", None),
    ('at::Device("cuda:1").str()', None),
    ('at::Device("nonsense").str()', None),
    ("at::Device(at::kCPU, 3).str()", "'cpu:3'"),
    ("at::empty_like(x, at::device(at::Device(at::kCPU, 1))).device().str()", "'cpu'"),
    ("at::Device(at::kCUDA, 1).has_index() && at::Device(at::kCUDA).index() == -1", None),
    ("[&] { at::Device v(at::kCUDA); v.set_index(2); return v.str() + c10::DeviceTypeName(v.type()); }()", None),
    ("c10::DeviceTypeName(at::kCPU, true)", None),
    ("at::Device(at::kCUDA).is_cuda() && !at::Device(at::kCPU).is_meta() && at::Device(at::kCPU).is_cpu()", None),
    (
        "[&] { at::TensorOptions o = at::dtype(at::kInt).device(at::kCPU).requires_grad(false); "
        "return std::make_tuple(o.has_dtype(), o.has_device(), o.has_layout(), o.has_requires_grad(), "
        "o.has_pinned_memory(), o.has_memory_format()); }()",
        None,
    ),
    ("at::TensorOptions().dtype<int>().dtype() == at::kInt", None),
    ("at::typeMetaToScalarType(at::TensorOptions().dtype())", None),
    ("at::device(at::kCPU).merge_in(at::dtype(at::kDouble)).dtype_opt()->toScalarType()", None),
    ("at::requires_grad().requires_grad() && !at::TensorOptions().pinned_memory()", None),
    ("at::layout(at::kStrided).layout_opt().has_value() && at::TensorOptions().layout() == at::kStrided", None),
    ("at::memory_format(at::MemoryFormat::ChannelsLast).memory_format_opt().has_value()", None),
    ("at::device_index(1).device().str()", None),
    ("at::TensorOptions().dtype_opt().has_value() || at::TensorOptions().device_opt().has_value()", None),
    (
        "at::TensorOptions().pinned_memory_opt().has_value() || at::TensorOptions().requires_grad_opt().has_value()",
        None,
    ),
    ("at::TensorOptions(at::kSparse).is_sparse()", None),
    ("c10::maybe_wrap_dim(i, 3)", None),
    ("c10::maybe_wrap_dim(i, 0)", None),
    ("c10::maybe_wrap_dim(i, 0, false)", None),
    ("c10::multiply_integers(x.sizes())", None),
    (
        "[&] { int64_t r = 0; for (auto k : c10::irange(i)) r += k; "
        "for (auto k : c10::irange(2, i)) r += k; return r; }()",
        None,
    ),
    ("at::IntArrayRef({1, 2, 3, 4}).slice(1, 2).vec()", None),
    ("at::IntArrayRef({1, 2, 3, 4}).slice(2).vec()", None),
    ("at::IntArrayRef({1, 2}).slice(1, 2).vec()", None),
    ("at::IntArrayRef({1, 2}).equals({1, 2}) && at::IntArrayRef({1, 2}) != at::IntArrayRef({1})", None),
    ("at::IntArrayRef({1, 2}).at(i)", None),
    ("at::OptionalIntArrayRef(i).value().vec()", None),
    (
        "[&] { c10::SmallVector<int64_t, 4> v; v.push_back(i); v.emplace_back(2); return (int64_t)v.size() + v[0]; }()",
        None,
    ),
    ("std::conj(c10::complex<double>(1, i)).imag() + std::norm(c10::complex<double>(1, i))", "1.0 - i + i * i"),
    ("std::abs(c10::complex<double>(3, 4)) + std::real(c10::complex<double>(1, 2))", "6.0"),
    (
        "[&] { auto z = std::pow(std::sqrt(std::exp(c10::complex<double>(0.5, i))), 2.0);"
        " return z.real() + z.imag(); }()",
        None,
    ),
    ("std::log2(c10::complex<float>(3, 4)).real() + std::arg(c10::complex<float>(3, 4))", None),
    ("x.type().toString()", None),
    ("torch::autograd::make_variable(x, x.is_floating_point())", None),
    (
        "[&] { at::DimVector v(x.sizes()); v.append({3, i}); v.append(2, 7); const auto w = v; v.append(w);"
        " v.append(w.begin(), w.end()); v.pop_back_val(); return at::IntArrayRef(v).vec(); }()",
        "((list(x.shape) + [3, i, 7, 7]) * 3)[:-1]",
    ),
    ("[&] { c10::List<int64_t> a({1, 2}); auto b = a; b.push_back(i); return (int64_t)a.size() + a.get(2); }()", None),
    ("at::divup(i, 2)", None),
    ("at::internal::GRAIN_SIZE", "32768"),
    ("x.data_ptr() == x.const_data_ptr() && x.data_ptr() == x.mutable_data_ptr()", None),
    ("[&] { float v[] = {1, 2, 3, 4}; return torch::from_blob(v, {2, 2}, at::kFloat).clone(); }()", None),
    ("[&] { float v[] = {1, 2, 3, 4}; return torch::from_blob(v, {2}, {2}, at::kFloat).clone(); }()", None),
    (
        "[&] { int64_t n = 0; float v[] = {1, 2}; { auto t = torch::from_blob(v, {2}, [&](void*) { ++n; }); } "
        "return n; }()",
        None,
    ),
    ("(at::acc_type<float, false>)0.1 + (double)at::opmath_type<at::Half>(0.1f)", None),
    ("at::_isnan(d) || at::_isnan(i)", None),
    ('[&] { at::TensorArg t(x, "x", 1); at::checkDim("f", t, 2); at::checkSize("f", t, {3, 4}); return 1; }()', None),
    ('[&] { at::TensorArg t(x, "x", 0); at::checkNumel("f", t, 12); at::checkContiguous("f", t); return 1; }()', None),
    (
        '[&] { at::TensorArg t(x, "x", 1), u(y, "y", 2); at::checkScalarType("f", t, at::kFloat); '
        'at::checkSameType("f", t, u); at::checkSameSize("f", t, u); at::checkAllContiguous("f", {t, u}); '
        'at::checkDefined("f", t); at::checkAllDefined("f", {t, u}); return 1; }()',
        None,
    ),
    ('[&] { at::TensorArg t(x, "x", 1); at::checkSize("f", t, 0, 3); return 1; }()', None),
    ('[&] { at::checkAllSameType("f", {{x, "x", 1}, {y, "y", 2}}); return 1; }()', None),
    ('[&] { at::checkAllSameNumel("f", {{x, "x", 1}, {y, "y", 2}}); return 1; }()', None),
    ('[&] { at::checkAllSameGPU("f", {{x, "x", 1}, {y, "y", 0}}); return 1; }()', None),
    (
        '[&] { at::checkDeviceType("f", {x, y}, at::kCPU); at::checkLayout("f", {x, y}, at::kStrided); return 1; }()',
        None,
    ),
    ('[&] { at::checkScalarTypes("f", {x, "x", 1}, {at::kFloat, at::kLong}); return 1; }()', None),
    ("at::device_of(x).value().str()", None),
    ("[&] { torch::AutoGradMode g(i > 0); return at::GradMode::is_enabled() && (x * 1).requires_grad(); }()", None),
    ("[&] { torch::NoGradGuard g; return x * 2; }()", None),
    (
        "AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBool, x.scalar_type(), "
        '"f", [&] { return (int64_t)sizeof(scalar_t); })',
        None,
    ),
    ('AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES(x.scalar_type(), "f", [&] { return (int64_t)sizeof(scalar_t); })', None),
    ('AT_DISPATCH_INDEX_TYPES(x.scalar_type(), "f", [&] { return (int64_t)sizeof(index_t); })', None),
    (
        "[&] { return at::parallel_reduce(0, i + 20, 3, int64_t{0}, [](int64_t b, int64_t e, int64_t s) { "
        "for (; b < e; ++b) s += b; return s; }, std::plus<int64_t>()); }()",
        None,
    ),
    ("[&] { at::Tensor t; return t.defined(); }()", None),
    ("[&] { at::Tensor t = x; t.reset(); return t.defined(); }()", None),
    ("[&] { at::Tensor t; return t.dim(); }()", None),
    ("[&] { at::Tensor t; return x + t; }()", None),
    ("[&] { at::IValue v(d); return v.toDouble() + v.isInt(); }()", None),
    ('[&] { at::IValue v("s"); return v.toStringRef() + (v.isString() ? "!" : ""); }()', None),
    ("[&] { at::IValue v(x); return v.toTensor(); }()", None),
    ("at::get_num_threads() > 0 && at::get_thread_num() == 0 && !at::in_parallel_region()", None),
    ("torch::autograd::any_variable_requires_grad({x, y})", None),
)
OF_MEMORY: tuple[tuple[str, str | None], ...] = (
    ("x.accessor<float, 2>()[0][1]", None),
    ("x.packed_accessor64<float, 2>()[0][1]", None),
    ("x.packed_accessor32<float, 2>()[1][0]", None),
    ("x.generic_packed_accessor<float, 2>()[1][0]", None),
    ("*x.contiguous().data_ptr<float>()", None),
    ("*x.contiguous().const_data_ptr<float>()", None),
    ("*x.clone().mutable_data_ptr<float>()", None),
    ("*x.contiguous().data<double>()", None),
)
"""Of tensors that have memory, and elements in it."""
OF_STORAGE: tuple[tuple[str, str | None], ...] = (
    ("x.clone().set_(y, 0, y.sizes(), y.strides())", "x.clone().set_(y, 0, y.size(), y.stride())"),
    (
        "x.clone().set_(y.contiguous(), y.numel() / 2, {y.numel() / 4}, {2})",
        "x.clone().set_(y.contiguous(), y.numel() // 2, (y.numel() // 4,), (2,))",
    ),
)
"""Not of a wrapper: torch gives the tensor inside the wrapper's storage, which has no memory. To read it ends the
process, in Python's torch and on torch's own headers as well. None takes more elements than there are: a storage that
grows has memory that nothing has written."""
EXPRESSIONS = OF_TENSORS + OF_VALUES + OF_MEMORY + OF_STORAGE
WITH_MEMORY = ("plain", "gradients", "dispatch mode", "function mode", "subclass", "autocast", "inference")
SOURCE = """
#include <torch/extension.h>
#include <ATen/AccumulateType.h>
#include <ATen/NumericUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorUtils.h>
struct Result {
  std::vector<at::Tensor> tensors; std::vector<double> numbers; std::vector<std::string> texts;
  void add(const at::Tensor& v) { tensors.push_back(v); }
  void add(double v) { numbers.push_back(v); }
  void add(at::ScalarType v) { texts.push_back(c10::toString(v)); }
  void add(const std::string& v) { texts.push_back(v); }
  void add(c10::complex<double> v) { add(v.real()); add(v.imag()); }
  void add(const std::vector<int64_t>& l) { for (auto v : l) add((double)v); }
  template <class... T> void add(const std::tuple<T...>& t) {
    std::apply([&](const auto&... v) { (add(v), ...); }, t);
  }
};
using Case = void (*)(at::Tensor&, at::Tensor&, int64_t, double, Result&);
static const Case cases[] = {
CASES
};
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("call", [](int64_t n, at::Tensor x, at::Tensor y, int64_t i, double d) {
    Result r; cases[n](x, y, i, d, r);
    return std::make_tuple(r.tensors, r.numbers, r.texts);
  });
}
"""


def source(chosen: Sequence[str]) -> str:
    """Returns the text of a module whose function `call` evaluates one of the expressions."""
    cases = "\n".join(
        f"  [](at::Tensor& x, at::Tensor& y, int64_t i, double d, Result& r) {{ r.add({text}); }}," for text in chosen
    )
    return SOURCE.replace("CASES", cases)


# What an expression gets: a dtype, a shape, a form, the integer and the number.
ARGUMENTS = (
    ("float32", (3, 4), "plain", 1, 2.0),
    ("int64", (3, 4), "transposed", 2, 0.5),
    ("float32", (4, 4), "expanded", 0, -1.5),
    ("bool", (3, 4), "plain", 1, 1.0),
    ("complex64", (4, 4), "strided", -1, 3.0),
    ("float64", (), "plain", 0, 0.0),
    ("float32", (0, 4), "plain", 1, 2.0),
    ("bfloat16", (2, 3, 4), "strided", 9, 300.7),
    ("float16", (4, 4), "transposed", -2, 1e30),
    ("uint8", (4,), "plain", 3, -1.0),
    ("float32", (2, 3, 4, 4), "channels", 1, 2.0),
    ("int32", (2, 3), "plain", -7, 2.5),
)
IN_SETTINGS = 3
"""How many of them are tried in each setting but the plain one and that of gradients."""


def arguments(case: int) -> tuple[torch.Tensor, torch.Tensor, int, float]:
    """Returns what an expression is tried with."""
    dtype, shape, form, integer, number = ARGUMENTS[case]
    generator = torch.Generator()  # torch.manual_seed also asks for each kind of device
    generator.manual_seed(case)

    def tensor() -> torch.Tensor:
        sizes = {
            "transposed": shape[::-1],
            "expanded": (1, *shape[1:]),
            "strided": (*shape[:-1], 2 * shape[-1]) if shape else shape,
        }.get(form, shape)
        made = (torch.randn(sizes, generator=generator) * 3 + 0.5).to(getattr(torch, dtype))
        if form == "transposed":
            return made.t() if len(shape) == 2 else made
        if form == "expanded":
            return made.expand(shape)
        if form == "channels":
            return made.to(memory_format=torch.channels_last)
        return made[..., ::2] if form == "strided" else made

    return tensor(), tensor(), integer, number


def _sorted_by_kind(result: object) -> tuple[list[Any], list[float], list[str]]:
    """Returns a result of Python in the form that the functions in C++ return."""
    parts = result if isinstance(result, list | tuple) else [result]
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    texts = [NAMES_OF_DTYPES.get(part, part) for part in parts if isinstance(part, str | torch.dtype)]
    return tensors, [float(part) for part in parts if isinstance(part, int | float)], texts


NAMES_OF_DTYPES = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.uint8: "Byte",
    torch.bool: "Bool",
    torch.complex64: "ComplexFloat",
}


def outcomes(call: Callable[..., Any], chosen: Mapping[int, str], in_settings: int = IN_SETTINGS) -> dict[str, Any]:
    """Returns the outcome of each expression in each setting, and what the setting has seen.

    Args:
        call: Takes an expression's number, two tensors, the integer and the number.
        chosen: The expressions' texts, by their numbers in the source.
        in_settings: How many arguments are tried in each setting but the plain one and that of gradients. If they are
            fewer than IN_SETTINGS, gradients have fewer too.
    """
    found: dict[str, Any] = {}
    most = {"plain": len(ARGUMENTS), "gradients": len(ARGUMENTS) if in_settings == IN_SETTINGS else 5}
    reads, storages = {text for text, _ in OF_MEMORY}, {text for text, _ in OF_STORAGE}
    for number, text in chosen.items():
        for setting in SETTINGS:
            if text in storages and setting == "wrapper":
                continue
            for case in range(most.get(setting, in_settings)):
                if setting == "gradients" and "float" not in ARGUMENTS[case][0] and "complex" not in ARGUMENTS[case][0]:
                    continue  # its tensors have none: it is the plain setting
                if text in reads and (setting not in WITH_MEMORY or 0 in ARGUMENTS[case][1]):
                    continue
                key = f"{text} | {setting} | {' '.join(map(str, ARGUMENTS[case]))}"
                found[key] = outcome(call, number, setting, case)
    return found


def outcome(call: Callable[..., Any], number: int, setting: str, case: int) -> tuple[Any, list[str]]:
    """Returns the outcome of one expression in a setting, and what the setting has seen."""
    x, y, integer, real = arguments(case)
    seen: list[str] = []

    def act() -> object:
        result, record = SETTINGS[setting](lambda tensors: call(number, *tensors, integer, real), [x, y])
        seen.extend(record)
        return result

    return of_call(act), seen


def differences_from_python(call: Callable[..., Any], in_settings: int = IN_SETTINGS) -> tuple[int, list[str]]:
    """Returns how many cases were compared with Python's torch, and a text for each that differs."""
    texts = {number: text for number, (text, python) in enumerate(EXPRESSIONS) if python}
    compiled = {number: compile(str(EXPRESSIONS[number][1]), "expression", "eval") for number in texts}

    def of_python(number: int, x: object, y: object, i: int, d: float) -> object:
        return _sorted_by_kind(eval(compiled[number], {"torch": torch, "x": x, "y": y, "i": i, "d": d}))

    found, expected = outcomes(call, texts, in_settings), outcomes(of_python, texts, in_settings)
    different = []
    types = torch.__version__.startswith(WITH_TYPES)
    for key, ((mine, _), (theirs, _)) in ((key, (found[key], expected[key])) for key in found):
        setting = key.rsplit(" | ", 2)[1]
        # The texts of Python's own conversions are others, and so are the types within a mode: see DIFFERENT.
        both_fail = mine[0] == theirs[0] == "error" and (not types or setting != "plain" or mine[1] == theirs[1])
        both_fail |= setting in IN_PYTHON_ALONE
        refused = mine[0] == "error" and "on torch's stable ABI" in mine[2]
        if not (mine == theirs or both_fail or refused or stays_different(key)):
            different.append(f"{key}\n  python: {str(theirs)[:200]}\n  facade: {str(mine)[:200]}")
    return len(found), different


# pybind11 refuses None, and Python's functions keep a subclass by __torch_function__.
IN_PYTHON_ALONE = ("undefined", "subclass")
WITH_TYPES = "2.13"
"""The torch whose errors' types the facade knows by their texts. Older ones pass no text on, newer ones have others."""
WITHOUT_RULE = ("x.is_signed()", "x.requires_grad()", "x.is_leaf()", "x._version()", "x.is_conj() || x.is_neg()")
# Where the facade differs and stays so: expressions, settings, and the reason that docs/decisions/100-facade.md gives.
DIFFERENT: tuple[tuple[Sequence[str], Sequence[str], str], ...] = (
    (
        (*WITHOUT_RULE, "x.is_inference()", "torch::autograd::any_variable_requires_grad({x, y})"),
        ("vmap",),
        "the operators that tell these of a tensor have no rule for torch.vmap",
    ),
    (
        ("[&] { torch::AutoGradMode g(i > 0); return at::GradMode::is_enabled() && (x * 1).requires_grad(); }()",),
        ("vmap",),
        "the operators that tell these of a tensor have no rule for torch.vmap",
    ),
    (
        ("x.is_contiguous(at::MemoryFormat::ChannelsLast)", "x.is_contiguous(at::MemoryFormat::ChannelsLast3d)"),
        ("vmap",),
        "torch refuses to tell it, and the facade tells it of the strides that are seen",
    ),
    (
        ("(x.clone() += y)", "x + y", "x.t() + y"),
        ("gradients",),
        "a gradient's imaginary zero has another sign",
    ),
    (("(x.clone() *= d)",), ("gradients",), "a gradient of mul_ by a number has another last bit in bfloat16"),
    (
        ("torch::addmv(x.select(1, 0), y, y[0], 1, 1e30).isnan()",),
        ("vmap",),
        "torch computes it by others there, and checks the factors otherwise",
    ),
    (
        ("torch::autograd::make_variable(x, x.is_floating_point())",),
        ("vmap", "inference tensors"),
        "torch takes the tensor's data, which the stable ABI does not have; the facade detaches it",
    ),
    (
        (
            "x.clone().index_put_({i}, d)",
            "torch::tensor(std::vector<double>{d, 1}, x.options())",
            "[&] { int64_t n = 0; float v[] = {1, 2}; { auto t = torch::from_blob(v, {2}, [&](void*) { ++n; }); } "
            "return n; }()",
        ),
        ("fake",),
        "torch's headers fail for a fake tensor, and the facade does not",
    ),
)


def stays_different(key: str) -> bool:
    """Returns whether a case is one of those in which the facade differs, and stays so."""
    expression, setting, _ = key.rsplit(" | ", 2)
    return any(expression in names and setting in settings for names, settings, _ in DIFFERENT)
