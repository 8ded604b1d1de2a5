// Operators with a Scalar that others compute, under the names of torch's operators: generate.py finds
// them here. Each has differential tests.
static Tensor add_Tensor(const Tensor& a, const Tensor& b, const Scalar& alpha) { return facade::sum_of(a, b, alpha); }
static Tensor& add__Tensor(const Tensor& a, const Tensor& b, const Scalar& alpha) {
    return facade::written(a, facade::sum_of(a, b, alpha));
}
static Tensor add_Scalar(const Tensor& a, const Scalar& s, const Scalar& alpha) {
    return facade::with_dimension(
        a, [&](const Tensor& x) { return facade::sum_of(x, facade::wrapped(s, x.scalar_type()), alpha); });
}
static Tensor& add__Scalar(const Tensor& a, const Scalar& s, const Scalar& alpha) {
    return facade::written(a, add_Scalar(a, s, alpha));
}
static Tensor sub_Tensor(const Tensor& a, const Tensor& b, const Scalar& alpha) {
    return facade::difference(a, b, alpha);
}
static Tensor& sub__Tensor(const Tensor& a, const Tensor& b, const Scalar& alpha) {
    return facade::written(a, facade::difference(a, b, alpha));
}
static Tensor sub_Scalar(const Tensor& a, const Scalar& s, const Scalar& alpha) {
    return facade::with_dimension(
        a, [&](const Tensor& x) { return facade::difference(x, facade::wrapped(s, x.scalar_type()), alpha); });
}
static Tensor& sub__Scalar(const Tensor& a, const Scalar& s, const Scalar& alpha) {
    return facade::written(a, sub_Scalar(a, s, alpha));
}
static Tensor subtract_Tensor(const Tensor& a, const Tensor& b, const Scalar& alpha) { return sub_Tensor(a, b, alpha); }
static Tensor subtract_Scalar(const Tensor& a, const Scalar& s, const Scalar& alpha) { return sub_Scalar(a, s, alpha); }
static Tensor rsub_Tensor(const Tensor& a, const Tensor& b, const Scalar& alpha) {
    return facade::difference(b, a, alpha);
}
static Tensor rsub_Scalar(const Tensor& a, const Scalar& s, const Scalar& alpha) {
    return facade::with_dimension(
        a, [&](const Tensor& x) { return facade::difference(facade::wrapped(s, x.scalar_type()), x, alpha); });
}
static Tensor mul_Scalar(const Tensor& a, const Scalar& s) { return facade::binary("aten::mul", "Tensor", a, s); }
static Tensor& mul__Scalar(const Tensor& a, const Scalar& s) {
    if (isReducedFloatingType(a.scalar_type()) && !s.isComplex()) {
        // torch rounds the number to the tensor's dtype first, here alone
        const Tensor number = facade::converted(facade::number(s), a.scalar_type());
        if (facade::is_float8(a.scalar_type())) {
            // torch multiplies the number by the tensor, and has no kernel for the other order
            return facade::written(a, call<Tensor>("aten::mul", "Tensor", number, a));
        }
        in_place("aten::mul_", "Tensor", a, number);
        return const_cast<Tensor&>(a);
    }
    return facade::binary_in_place("aten::mul_", "Tensor", a, s);
}
static Tensor multiply_Scalar(const Tensor& a, const Scalar& s) { return mul_Scalar(a, s); }
static Tensor div_Scalar(const Tensor& a, const Scalar& s) { return facade::binary("aten::div", "Tensor", a, s); }
static Tensor& div__Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::div_", "Tensor", a, s);
}
static Tensor divide_Scalar(const Tensor& a, const Scalar& s) { return div_Scalar(a, s); }
static Tensor true_divide_Scalar(const Tensor& a, const Scalar& s) { return div_Scalar(a, s); }
static Tensor& true_divide__Scalar(const Tensor& a, const Scalar& s) { return div__Scalar(a, s); }
static Tensor floor_divide_Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary("aten::floor_divide", "", a, s);
}
static Tensor remainder_Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary("aten::remainder", "Tensor", a, s);
}
static Tensor& remainder__Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::remainder_", "Tensor", a, s);
}
static Tensor fmod_Scalar(const Tensor& a, const Scalar& s) { return facade::binary("aten::fmod", "Tensor", a, s); }
static Tensor& fmod__Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::fmod_", "Tensor", a, s);
}
static Tensor eq_Scalar(const Tensor& a, const Scalar& s) { return facade::binary("aten::eq", "Tensor", a, s); }
static Tensor ne_Scalar(const Tensor& a, const Scalar& s) { return facade::binary("aten::ne", "Tensor", a, s); }
static Tensor lt_Scalar(const Tensor& a, const Scalar& s) { return facade::binary("aten::lt", "Tensor", a, s); }
static Tensor le_Scalar(const Tensor& a, const Scalar& s) { return facade::binary("aten::le", "Tensor", a, s); }
static Tensor gt_Scalar(const Tensor& a, const Scalar& s) { return facade::binary("aten::gt", "Tensor", a, s); }
static Tensor ge_Scalar(const Tensor& a, const Scalar& s) { return facade::binary("aten::ge", "Tensor", a, s); }
static Tensor bitwise_and_Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary("aten::bitwise_and", "Tensor", a, s);
}
static Tensor bitwise_or_Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary("aten::bitwise_or", "Tensor", a, s);
}
static Tensor bitwise_xor_Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary("aten::bitwise_xor", "Tensor", a, s);
}
static Tensor __and___Scalar(const Tensor& a, const Scalar& s) { return bitwise_and_Scalar(a, s); }
static Tensor __or___Scalar(const Tensor& a, const Scalar& s) { return bitwise_or_Scalar(a, s); }
static Tensor __xor___Scalar(const Tensor& a, const Scalar& s) { return bitwise_xor_Scalar(a, s); }
static Tensor __lshift___Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary("aten::__lshift__", "Tensor", a, s);
}
static Tensor __rshift___Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary("aten::__rshift__", "Tensor", a, s);
}
static Tensor pow_Tensor_Scalar(const Tensor& a, const Scalar& s) { return facade::power(a, s); }
static Tensor& pow__Scalar(const Tensor& a, const Scalar& s) { return facade::written(a, facade::power(a, s)); }
static Tensor clamp(const Tensor& a, const std::optional<Scalar>& low, const std::optional<Scalar>& high) {
    if (!low && !high) {
        facade::fail("torch.clamp: At least one of 'min' or 'max' must not be None");
    }
    return facade::with_dimension(a, [&](const Tensor& x) {
        auto bound = [&](const std::optional<Scalar>& s) {
            return s ? std::optional<Tensor>(bound_of(*s, x.scalar_type())) : std::nullopt;
        };
        return call<Tensor>("aten::clamp", "Tensor", x, bound(low), bound(high));
    });
}
static Tensor& clamp_(const Tensor& a, const std::optional<Scalar>& low, const std::optional<Scalar>& high) {
    return facade::written(a, clamp(a, low, high));
}
// A bound that the tensor's dtype cannot hold is an error, if the bound does not widen the result's.
static Tensor bound_of(const Scalar& s, ScalarType t) {
    if (facade::category(s.type()) <= facade::category(t)) {
        facade::check_fits(s, t);
    }
    return facade::wrapped(s, t);
}
static Tensor clamp_min(const Tensor& a, const Scalar& s) {
    return facade::with_dimension(
        a, [&](const Tensor& x) { return call<Tensor>("aten::clamp_min", "Tensor", x, bound_of(s, x.scalar_type())); });
}
static Tensor& clamp_min_(const Tensor& a, const Scalar& s) { return facade::written(a, clamp_min(a, s)); }
static Tensor clamp_max(const Tensor& a, const Scalar& s) {
    return facade::with_dimension(
        a, [&](const Tensor& x) { return call<Tensor>("aten::clamp_max", "Tensor", x, bound_of(s, x.scalar_type())); });
}
static Tensor& clamp_max_(const Tensor& a, const Scalar& s) { return facade::written(a, clamp_max(a, s)); }
static Tensor& fill__Scalar(const Tensor& a, const Scalar& s) {
    facade::fill_with(a, s);
    return const_cast<Tensor&>(a);
}
static Tensor fill_Scalar(const Tensor& a, const Scalar& s) {
    facade::check_fill(s, a);
    return call<Tensor>("aten::fill", "Tensor", a, facade::number(s));
}
static Tensor masked_fill_Scalar(const Tensor& a, const Tensor& mask, const Scalar& s) {
    return call<Tensor>("aten::masked_fill", "Tensor", a, mask, facade::number_for(a, s));
}
static Tensor& masked_fill__Scalar(const Tensor& a, const Tensor& mask, const Scalar& s) {
    in_place("aten::masked_fill_", "Tensor", a, mask, facade::number_for(a, s));
    return const_cast<Tensor&>(a);
}
static Tensor index_fill_int_Scalar(const Tensor& a, int64_t dim, const Tensor& index, const Scalar& s) {
    return call<Tensor>("aten::index_fill", "int_Tensor", a, dim, index, facade::number_for(a, s));
}
static Tensor& index_fill__int_Scalar(const Tensor& a, int64_t dim, const Tensor& index, const Scalar& s) {
    in_place("aten::index_fill_", "int_Tensor", a, dim, index, facade::number_for(a, s));
    return const_cast<Tensor&>(a);
}
// torch's pad takes its number as a double, and calls this operator with it.
static Tensor constant_pad_nd(const Tensor& a, IntArrayRef pad, const Scalar& s) {
    constexpr int64_t exact = int64_t(1) << 53;
    if (s.isComplex() || (s.isIntegral(true) && (s.toLong() > exact || s.toLong() < -exact))) {
        facade::fail("constant_pad_nd with a number that no double holds is not on torch's stable ABI");
    }
    double value = s.toDouble();
    if (s.isIntegral(true) && value < 0 && value > -256 && a.scalar_type() == ScalarType::Byte) {
        value += 256;  // torch takes a negative integer, and refuses a negative double
    }
    return call<Tensor>("aten::pad", "", a, pad, std::string_view("constant"), std::optional<double>(value));
}
static Tensor where_ScalarSelf(const Tensor& condition, const Scalar& s, const Tensor& other) {
    return chosen(condition, s, other, true);
}
static Tensor where_ScalarOther(const Tensor& condition, const Tensor& self, const Scalar& s) {
    return chosen(condition, s, self, false);
}
static Tensor chosen(const Tensor& condition, const Scalar& s, const Tensor& t, bool number_first) {
    // the dtype that the tensor has beside the number, whatever the tensor's dimensions
    ScalarType type = facade::category(t.scalar_type()) >= facade::category(s.type())
                          ? t.scalar_type()
                          : facade::wrapped(s, t.scalar_type()).scalar_type();
    Tensor x = facade::converted(facade::number(s), type);
    Tensor y = facade::converted(t, type);
    if (condition.defined() && !condition.is_cpu()) {
        x = x.to(condition.device());
    }
    return number_first ? call<Tensor>("aten::where", "self", condition, x, y)
                        : call<Tensor>("aten::where", "self", condition, y, x);
}
static Tensor full(IntArrayRef size, const Scalar& s, std::optional<ScalarType> dtype, std::optional<Layout> layout,
                   std::optional<Device> device, std::optional<bool> pinned) {
    return facade::filled(facade::empty(size, TensorOptions()
                                                  .dtype(dtype ? dtype : facade::dtype_of(s))
                                                  .layout(layout)
                                                  .device(device)
                                                  .pinned_memory(pinned)),
                          s);
}
static Tensor full_like(const Tensor& a, const Scalar& s, std::optional<ScalarType> dtype, std::optional<Layout> layout,
                        std::optional<Device> device, std::optional<bool> pinned, std::optional<MemoryFormat> format) {
    return facade::filled(call<Tensor>("aten::empty_like", "", a, dtype, layout, device, pinned, format), s);
}
static Tensor new_full(const Tensor& a, IntArrayRef size, const Scalar& s, std::optional<ScalarType> dtype,
                       std::optional<Layout> layout, std::optional<Device> device, std::optional<bool> pinned) {
    return facade::filled(call<Tensor>("aten::new_empty", "", a, size, dtype, layout, device, pinned), s);
}
static Tensor scalar_tensor(const Scalar& s, std::optional<ScalarType> dtype, std::optional<Layout> layout,
                            std::optional<Device> device, std::optional<bool> pinned) {
    return full({}, s, dtype ? dtype : facade::default_dtype(), layout, device, pinned);
}
static Tensor arange(const Scalar& end, std::optional<ScalarType> dtype, std::optional<Layout> layout,
                     std::optional<Device> device, std::optional<bool> pinned) {
    return arange_start_step(Scalar(0), end, Scalar(1), dtype, layout, device, pinned);
}
static Tensor arange_start(const Scalar& begin, const Scalar& end, std::optional<ScalarType> dtype,
                           std::optional<Layout> layout, std::optional<Device> device, std::optional<bool> pinned) {
    return arange_start_step(begin, end, Scalar(1), dtype, layout, device, pinned);
}
static Tensor arange_start_step(const Scalar& begin, const Scalar& end, const Scalar& step,
                                std::optional<ScalarType> dtype, std::optional<Layout> layout,
                                std::optional<Device> device, std::optional<bool> pinned) {
    return facade::range(begin, end, step,
                         TensorOptions().dtype(dtype).layout(layout).device(device).pinned_memory(pinned));
}
// linear calls addmm with its bias, and both factors one, for matrices.
static Tensor addmm(const Tensor& a, const Tensor& x, const Tensor& y, const Scalar& beta, const Scalar& alpha) {
    if (!beta.equal(1) || !alpha.equal(1)) {
        facade::fail("addmm with a factor other than 1 is not on torch's stable ABI: multiply its arguments");
    }
    if (x.dim() != 2 || y.dim() != 2) {
        facade::fail(facade::text("mat1 and mat2 must be 2-D, but got ", x.dim(), "-D and ", y.dim(), "-D"));
    }
    return call<Tensor>("aten::linear", "", x, call<Tensor>("aten::t", "", y), std::optional<Tensor>(a));
}
// The one norm whose number the stable ABI can leave out: that of 2.
static void check_norm(const std::optional<Scalar>& p) {
    if (p && !p->equal(2)) {
        facade::fail(facade::text("norm with p = ", p->isComplex() ? 0 : p->toDouble(),
                                  " is not on torch's stable ABI, which passes no Scalar: use 2, or compute it by abs,"
                                  " pow, sum and amax"));
    }
}
static Tensor norm_ScalarOpt_dim(const Tensor& a, const std::optional<Scalar>& p, IntArrayRef dim, bool keepdim) {
    check_norm(p);
    return call<Tensor>("aten::norm", "ScalarOpt_dim", a, std::optional<int64_t>(), dim, keepdim);
}
static Tensor norm_ScalarOpt_dim_dtype(const Tensor& a, const std::optional<Scalar>& p, IntArrayRef dim, bool keepdim,
                                       ScalarType dtype) {
    check_norm(p);
    return call<Tensor>("aten::norm", "ScalarOpt_dim_dtype", a, std::optional<int64_t>(), dim, keepdim, dtype);
}
static Tensor norm_ScalarOpt_dtype(const Tensor& a, const std::optional<Scalar>& p, ScalarType dtype) {
    check_norm(p);
    return call<Tensor>("aten::norm", "ScalarOpt_dtype", a, std::optional<int64_t>(), dtype);
}
static Tensor norm_Scalar(const Tensor& a, const Scalar& p) { return norm_ScalarOpt_dim(a, p, {}, false); }
// A variance whose correction is left out, or is one of the two that torch's older operators state by a bool.
static bool is_unbiased(const std::optional<Scalar>& correction) {
    if (correction && !correction->equal(0) && !correction->equal(1)) {
        facade::fail(
            "a variance with a correction other than 0 and 1 is not on torch's stable ABI, which passes no Scalar");
    }
    return !correction || correction->equal(1);
}
static Tensor var_correction(const Tensor& a, OptionalIntArrayRef dim, const std::optional<Scalar>& correction,
                             bool keepdim) {
    return call<Tensor>("aten::var", "dim", a, dim, is_unbiased(correction), keepdim);
}
static Tensor std_correction(const Tensor& a, OptionalIntArrayRef dim, const std::optional<Scalar>& correction,
                             bool keepdim) {
    return call<Tensor>("aten::std", "dim", a, dim, is_unbiased(correction), keepdim);
}
static std::tuple<Tensor, Tensor> var_mean_correction(const Tensor& a, OptionalIntArrayRef dim,
                                                      const std::optional<Scalar>& correction, bool keepdim) {
    return call<std::tuple<Tensor, Tensor>>("aten::var_mean", "dim", a, dim, is_unbiased(correction), keepdim);
}
static std::tuple<Tensor, Tensor> std_mean_correction(const Tensor& a, OptionalIntArrayRef dim,
                                                      const std::optional<Scalar>& correction, bool keepdim) {
    return call<std::tuple<Tensor, Tensor>>("aten::std_mean", "dim", a, dim, is_unbiased(correction), keepdim);
}
