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
// torch's kernels for numbers take no bools; those for tensors, which compute this, do.
static void check_bounds(const Tensor& a, bool is_bool, const char* kernel) {
    if (is_bool && a.scalar_type() == ScalarType::Bool) {
        facade::fail<NotImplementedError>(facade::text("\"", kernel, "\" not implemented for 'Bool'"));
    }
}
static Tensor clamp(const Tensor& a, const std::optional<Scalar>& low, const std::optional<Scalar>& high) {
    if (!low && !high) {
        facade::fail("torch.clamp: At least one of 'min' or 'max' must not be None");
    }
    const bool is_bool = (!low || low->isBoolean()) && (!high || high->isBoolean());
    check_bounds(a, is_bool, !high ? "clamp_min_scalar_cpu" : low ? "clamp_scalar_cpu" : "clamp_max_scalar_cpu");
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
    check_bounds(a, s.isBoolean(), "clamp_min_scalar_cpu");
    return facade::with_dimension(
        a, [&](const Tensor& x) { return call<Tensor>("aten::clamp_min", "Tensor", x, bound_of(s, x.scalar_type())); });
}
static Tensor& clamp_min_(const Tensor& a, const Scalar& s) { return facade::written(a, clamp_min(a, s)); }
static Tensor clamp_max(const Tensor& a, const Scalar& s) {
    check_bounds(a, s.isBoolean(), "clamp_max_scalar_cpu");
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
    if (facade::category(type) == facade::Category::Integer) {
        facade::check_fits(s, type);
    }
    Tensor x = facade::converted(facade::number(s), type);
    Tensor y = facade::converted(t, type);
    if (condition.defined() && !condition.is_cpu()) {
        x = x.to(condition.device());
    }
    return number_first ? call<Tensor>("aten::where", "self", condition, x, y)
                        : call<Tensor>("aten::where", "self", condition, y, x);
}
static Tensor& eq__Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::eq_", "Tensor", a, s);
}
static Tensor& ne__Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::ne_", "Tensor", a, s);
}
static Tensor& ge__Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::ge_", "Tensor", a, s);
}
static Tensor& le__Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::le_", "Tensor", a, s);
}
static Tensor& gt__Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::gt_", "Tensor", a, s);
}
static Tensor& lt__Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::lt_", "Tensor", a, s);
}
static Tensor not_equal_Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary("aten::not_equal", "Tensor", a, s);
}
static Tensor& not_equal__Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::not_equal_", "Tensor", a, s);
}
static Tensor greater_equal_Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary("aten::greater_equal", "Tensor", a, s);
}
static Tensor& greater_equal__Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::greater_equal_", "Tensor", a, s);
}
static Tensor less_equal_Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary("aten::less_equal", "Tensor", a, s);
}
static Tensor& less_equal__Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::less_equal_", "Tensor", a, s);
}
static Tensor greater_Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary("aten::greater", "Tensor", a, s);
}
static Tensor& greater__Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::greater_", "Tensor", a, s);
}
static Tensor less_Scalar(const Tensor& a, const Scalar& s) { return facade::binary("aten::less", "Tensor", a, s); }
static Tensor& less__Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::less_", "Tensor", a, s);
}
static Tensor& bitwise_and__Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::bitwise_and_", "Tensor", a, s);
}
static Tensor bitwise_and_Scalar_Tensor(const Scalar& s, const Tensor& a) {
    return facade::number_first("aten::bitwise_and", "Tensor", s, a);
}
static Tensor& bitwise_or__Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::bitwise_or_", "Tensor", a, s);
}
static Tensor bitwise_or_Scalar_Tensor(const Scalar& s, const Tensor& a) {
    return facade::number_first("aten::bitwise_or", "Tensor", s, a);
}
static Tensor& bitwise_xor__Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::bitwise_xor_", "Tensor", a, s);
}
static Tensor bitwise_xor_Scalar_Tensor(const Scalar& s, const Tensor& a) {
    return facade::number_first("aten::bitwise_xor", "Tensor", s, a);
}
static Tensor bitwise_left_shift_Tensor_Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary("aten::bitwise_left_shift", "Tensor", a, s);
}
static Tensor& bitwise_left_shift__Tensor_Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::bitwise_left_shift_", "Tensor", a, s);
}
static Tensor bitwise_left_shift_Scalar_Tensor(const Scalar& s, const Tensor& a) {
    return facade::number_first("aten::bitwise_left_shift", "Tensor", s, a);
}
static Tensor bitwise_right_shift_Tensor_Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary("aten::bitwise_right_shift", "Tensor", a, s);
}
static Tensor& bitwise_right_shift__Tensor_Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::bitwise_right_shift_", "Tensor", a, s);
}
static Tensor bitwise_right_shift_Scalar_Tensor(const Scalar& s, const Tensor& a) {
    return facade::number_first("aten::bitwise_right_shift", "Tensor", s, a);
}
static Tensor& __iand___Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::__iand__", "Tensor", a, s);
}
static Tensor& __ior___Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::__ior__", "Tensor", a, s);
}
static Tensor& __ixor___Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::__ixor__", "Tensor", a, s);
}
static Tensor& __ilshift___Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::__ilshift__", "Tensor", a, s);
}
static Tensor& __irshift___Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::__irshift__", "Tensor", a, s);
}
static Tensor copysign_Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary("aten::copysign", "Tensor", a, s);
}
static Tensor& copysign__Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::copysign_", "Tensor", a, s);
}
static Tensor xlogy_Scalar_Other(const Tensor& a, const Scalar& s) {
    return facade::binary("aten::xlogy", "Tensor", a, s);
}
static Tensor& xlogy__Scalar_Other(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::xlogy_", "Tensor", a, s);
}
static Tensor xlogy_Scalar_Self(const Scalar& s, const Tensor& a) {
    return facade::number_first("aten::xlogy", "Tensor", s, a);
}
static Tensor& multiply__Scalar(const Tensor& a, const Scalar& s) { return mul__Scalar(a, s); }
static Tensor& divide__Scalar(const Tensor& a, const Scalar& s) { return div__Scalar(a, s); }
static Tensor& floor_divide__Scalar(const Tensor& a, const Scalar& s) {
    return facade::binary_in_place("aten::floor_divide_", "Tensor", a, s);
}
static Tensor& subtract__Tensor(const Tensor& a, const Tensor& b, const Scalar& alpha) {
    return sub__Tensor(a, b, alpha);
}
static Tensor& subtract__Scalar(const Tensor& a, const Scalar& s, const Scalar& alpha) {
    return sub__Scalar(a, s, alpha);
}
static Tensor div_Scalar_mode(const Tensor& a, const Scalar& s, std::optional<std::string_view> mode) {
    return facade::with_dimension(a, [&](const Tensor& x) {
        return call<Tensor>("aten::div", "Tensor_mode", x, facade::wrapped(s, x.scalar_type()), mode);
    });
}
static Tensor& div__Scalar_mode(const Tensor& a, const Scalar& s, std::optional<std::string_view> mode) {
    return facade::written(a, div_Scalar_mode(a, s, mode));
}
static Tensor divide_Scalar_mode(const Tensor& a, const Scalar& s, std::optional<std::string_view> mode) {
    return div_Scalar_mode(a, s, mode);
}
static Tensor& divide__Scalar_mode(const Tensor& a, const Scalar& s, std::optional<std::string_view> mode) {
    return div__Scalar_mode(a, s, mode);
}
static Tensor clip(const Tensor& a, const std::optional<Scalar>& low, const std::optional<Scalar>& high) {
    return clamp(a, low, high);
}
static Tensor& clip_(const Tensor& a, const std::optional<Scalar>& low, const std::optional<Scalar>& high) {
    return clamp_(a, low, high);
}
static Tensor where_Scalar(const Tensor& condition, const Scalar& s, const Scalar& other) {
    const ScalarType type = facade::of_numbers(s, other);
    auto made = [&](const Scalar& value) {
        Tensor x = facade::converted(facade::number(value), type);
        return condition.defined() && !condition.is_cpu() ? x.to(condition.device()) : x;
    };
    return call<Tensor>("aten::where", "self", condition, made(s), made(other));
}
static Tensor linspace(const Scalar& start, const Scalar& end, int64_t steps, std::optional<ScalarType> dtype,
                       std::optional<Layout> layout, std::optional<Device> device, std::optional<bool> pinned) {
    return call<Tensor>("aten::linspace", "Tensor_Tensor", facade::number(start), facade::number(end), steps, dtype,
                        layout, device, pinned);
}
static Tensor logspace(const Scalar& start, const Scalar& end, int64_t steps, double base,
                       std::optional<ScalarType> dtype, std::optional<Layout> layout, std::optional<Device> device,
                       std::optional<bool> pinned) {
    return call<Tensor>("aten::logspace", "Tensor_Tensor", facade::number(start), facade::number(end), steps, base,
                        dtype, layout, device, pinned);
}
// The number in each place of the index. torch's operator takes a source of any larger size.
static Tensor scatter_value(const Tensor& a, int64_t dim, const Tensor& index, const Scalar& s) {
    return call<Tensor>("aten::scatter", "src", a, dim, index, facade::filling(a, index, s));
}
static Tensor& scatter__value(const Tensor& a, int64_t dim, const Tensor& index, const Scalar& s) {
    in_place("aten::scatter_", "src", a, dim, index, facade::filling(a, index, s));
    return const_cast<Tensor&>(a);
}
static Tensor scatter_value_reduce(const Tensor& a, int64_t dim, const Tensor& index, const Scalar& s,
                                   std::string_view reduce) {
    return call<Tensor>("aten::scatter", "reduce", a, dim, index, facade::filling(a, index, s), reduce);
}
static Tensor& scatter__value_reduce(const Tensor& a, int64_t dim, const Tensor& index, const Scalar& s,
                                     std::string_view reduce) {
    in_place("aten::scatter_", "reduce", a, dim, index, facade::filling(a, index, s), reduce);
    return const_cast<Tensor&>(a);
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
// Those on the diagonal, which with `wrap` begins again below a square.
static Tensor& fill_diagonal_(const Tensor& a, const Scalar& s, bool wrap) {
    if (a.dim() < 2) {
        facade::fail("dimensions must larger than 1");
    }
    for (int64_t i = 1; a.dim() > 2 && i < a.dim(); ++i) {
        if (a.size(i) != a.size(0)) {
            facade::fail("all dimensions of input must be of equal length");
        }
    }
    const int64_t step = a.size(1) + 1;
    for (int64_t row = 0; row == 0 || (wrap && a.dim() == 2 && row < a.size(0)); row += step) {
        Tensor rest = call<Tensor>("aten::narrow", "", a, int64_t{0}, row, a.size(0) - row);
        while (rest.dim() > 1) {
            rest = call<Tensor>("aten::diagonal", "", rest, int64_t{0}, int64_t{0},
                                rest.dim() == 2 ? int64_t{1} : rest.dim() - 1);
        }
        facade::fill_with(rest, s);
    }
    return const_cast<Tensor&>(a);
}
static Tensor& add_out(const Tensor& a, const Tensor& b, const Scalar& alpha, Tensor& out) {
    return facade::put(out, facade::sum_of(a, b, alpha));
}
static Tensor& sub_out(const Tensor& a, const Tensor& b, const Scalar& alpha, Tensor& out) {
    return facade::put(out, facade::difference(a, b, alpha));
}
