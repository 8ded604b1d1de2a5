// Operators with a Scalar that others compute, whose last bits, or the strides of whose gradients, may differ from
// those of torch's own kernels: docs/facade.md lists them, and the differential tests allow a few units of the last
// place.
static Tensor pow_Tensor_Scalar(const Tensor& a, const Scalar& s) { return facade::power(a, s); }
static Tensor& pow__Scalar(const Tensor& a, const Scalar& s) { return facade::written(a, facade::power(a, s)); }
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
static Tensor pow_Scalar(const Scalar& s, const Tensor& exponent) {
    if (s.equal(1) && facade::is_float8(exponent.scalar_type())) {
        return facade::with_dimension(exponent, [&](const Tensor& x) {
            return full_like(x, 1, facade::promoted(facade::wrapped(s, x.scalar_type()), x), std::nullopt, std::nullopt,
                             std::nullopt, MemoryFormat::Contiguous);
        });
    }
    return facade::number_first("aten::pow", "Tensor_Tensor", s, exponent).contiguous();
}
static Tensor float_power_Tensor_Scalar(const Tensor& a, const Scalar& s) {
    const bool is_complex = isComplexType(a.scalar_type()) || s.isComplex();
    return facade::power(facade::converted(a, is_complex ? ScalarType::ComplexDouble : ScalarType::Double), s);
}
// linear calls addmm with its bias, and both factors one, for matrices.
static Tensor addmm(const Tensor& a, const Tensor& x, const Tensor& y, const Scalar& beta, const Scalar& alpha) {
    if (x.dim() != 2 || y.dim() != 2) {
        facade::fail(facade::text("mat1 and mat2 must be 2-D, but got ", x.dim(), "-D and ", y.dim(), "-D"));
    }
    if (beta.equal(1) && alpha.equal(1)) {
        return call<Tensor>("aten::linear", "", x, call<Tensor>("aten::t", "", y), std::optional<Tensor>(a));
    }
    return facade::added(a, call<Tensor>("aten::mm", "", x, y), x, beta, alpha).contiguous();
}
static Tensor& addmm_(const Tensor& a, const Tensor& x, const Tensor& y, const Scalar& beta, const Scalar& alpha) {
    return facade::written(a, addmm(a, x, y, beta, alpha));
}
// These two of torch's operators alone hold their factors in float16 or bfloat16 themselves.
static void check_hold(ScalarType t, const Scalar& beta, const Scalar& alpha) {
    facade::check_fits(beta, t);
    facade::check_fits(alpha, t);
}
static Tensor addmv(const Tensor& a, const Tensor& x, const Tensor& y, const Scalar& beta, const Scalar& alpha) {
    const Tensor product = call<Tensor>("aten::mv", "", x, y);
    if (x.numel() != 0) {
        check_hold(product.scalar_type(), beta, alpha);
    }
    return facade::added(a, product, x, beta, alpha);
}
static Tensor& addmv_(const Tensor& a, const Tensor& x, const Tensor& y, const Scalar& beta, const Scalar& alpha) {
    return facade::written(a, addmv(a, x, y, beta, alpha));
}
static Tensor addr(const Tensor& a, const Tensor& x, const Tensor& y, const Scalar& beta, const Scalar& alpha) {
    const Tensor product = call<Tensor>("aten::outer", "", x, y);
    const ScalarType t = facade::promoted(a, product);  // of other dtypes, too
    facade::check_factor("beta", t, beta);
    facade::check_factor("alpha", t, alpha);
    check_hold(t, beta, alpha);
    return facade::added(facade::converted(a, t), facade::converted(product, t), a, beta, alpha);
}
static Tensor& addr_(const Tensor& a, const Tensor& x, const Tensor& y, const Scalar& beta, const Scalar& alpha) {
    return facade::written(a, addr(a, x, y, beta, alpha));
}
static Tensor baddbmm(const Tensor& a, const Tensor& x, const Tensor& y, const Scalar& beta, const Scalar& alpha) {
    return facade::added(a, call<Tensor>("aten::bmm", "", x, y), x, beta, alpha).contiguous();
}
static Tensor& baddbmm_(const Tensor& a, const Tensor& x, const Tensor& y, const Scalar& beta, const Scalar& alpha) {
    return facade::written(a, baddbmm(a, x, y, beta, alpha));
}
static Tensor addbmm(const Tensor& a, const Tensor& x, const Tensor& y, const Scalar& beta, const Scalar& alpha) {
    const Tensor products = call<Tensor>("aten::bmm", "", x, y);
    const Tensor sum = call<Tensor>("aten::sum", "dim_IntList", products, std::optional<IntArrayRef>(int64_t{0}), false,
                                    std::optional<ScalarType>(products.scalar_type()));
    return facade::added(a, sum, x, beta, alpha).contiguous();
}
static Tensor& addbmm_(const Tensor& a, const Tensor& x, const Tensor& y, const Scalar& beta, const Scalar& alpha) {
    return facade::written(a, addbmm(a, x, y, beta, alpha));
}
static Tensor addcmul(const Tensor& a, const Tensor& x, const Tensor& y, const Scalar& value) {
    return facade::added_term("aten::mul", a, x, y, value);
}
static Tensor& addcmul_(const Tensor& a, const Tensor& x, const Tensor& y, const Scalar& value) {
    return facade::written(a, addcmul(a, x, y, value));
}
static Tensor addcdiv(const Tensor& a, const Tensor& x, const Tensor& y, const Scalar& value) {
    if (facade::category(x.scalar_type()) < facade::Category::Real &&
        facade::category(y.scalar_type()) < facade::Category::Real) {
        facade::fail(
            "Integer division with addcdiv is no longer supported, and in a future  release addcdiv will"
            " perform a true division of tensor1 and tensor2.");
    }
    return facade::added_term("aten::div", a, x, y, value);
}
static Tensor& addcdiv_(const Tensor& a, const Tensor& x, const Tensor& y, const Scalar& value) {
    return facade::written(a, addcdiv(a, x, y, value));
}
static Tensor lerp_Scalar(const Tensor& a, const Tensor& end, const Scalar& weight) {
    if (a.scalar_type() != end.scalar_type()) {
        facade::fail(facade::text("expected dtype ", c10::toString(a.scalar_type()), " for `end` but got dtype ",
                                  c10::toString(end.scalar_type())));
    }
    facade::check_fits(weight, facade::computed_in(a.scalar_type()));
    const Tensor from = facade::widened(a);
    return facade::converted(
        call<Tensor>("aten::lerp", "Tensor", from, facade::widened(end), facade::number_in(from, weight)),
        a.scalar_type());
}
static Tensor& lerp__Scalar(const Tensor& a, const Tensor& end, const Scalar& weight) {
    return facade::written(a, lerp_Scalar(a, end, weight));
}
static Tensor leaky_relu(const Tensor& a, const Scalar& slope) {
    facade::check_real("leaky_relu_cpu", a);
    facade::check_fits(slope, facade::computed_in(a.scalar_type()));
    return facade::chosen_by(facade::binary("aten::gt", "Tensor", a, 0), a, mul_Scalar(a, slope));
}
static Tensor& leaky_relu_(Tensor& a, const Scalar& slope) { return facade::written(a, leaky_relu(a, slope)); }
// Numbers are rounded to the tensor's dtype before they are compared with it.
static Tensor threshold(const Tensor& a, const Scalar& limit, const Scalar& value) {
    facade::check_number("threshold_cpu", a);
    facade::check_fits(limit, facade::computed_in(a.scalar_type()));
    facade::check_fits(value, facade::computed_in(a.scalar_type()));
    return facade::chosen_by(call<Tensor>("aten::le", "Tensor", a, facade::number_in(a, limit)),
                             facade::number_in(a, value), a);
}
static Tensor& threshold_(Tensor& a, const Scalar& limit, const Scalar& value) {
    return facade::written(a, threshold(a, limit, value));
}
// Its gradient at the bounds is zero, where clamp's is one.
static Tensor hardtanh(const Tensor& a, const Scalar& low, const Scalar& high) {
    if (a.scalar_type() == ScalarType::Bool) {
        facade::fail("Bool inputs not supported for hardtanh");
    }
    facade::check_number("hardtanh_cpu", a);
    const bool is_real = facade::category(a.scalar_type()) >= facade::Category::Real;
    auto bound = [&](const Scalar& s) { return is_real || s.isIntegral(true) ? s : Scalar(s.toLong()); };
    const Scalar low_bound = bound(low), high_bound = bound(high);
    facade::check_fits(low_bound, a.scalar_type());
    facade::check_fits(high_bound, a.scalar_type());
    if (a.scalar_type() == ScalarType::Byte && (low_bound.toLong() < 0 || high_bound.toLong() < 0)) {
        facade::fail("cannot do hardtanh on an unsigned type with negative limits");
    }
    const Tensor least = facade::number_in(a, low_bound), most = facade::number_in(a, high_bound);
    const Tensor above = facade::chosen_by(call<Tensor>("aten::le", "Tensor", a, least), least, a);
    return facade::chosen_by(call<Tensor>("aten::ge", "Tensor", above, most), most, above);
}
static Tensor& hardtanh_(Tensor& a, const Scalar& low, const Scalar& high) {
    return facade::written(a, hardtanh(a, low, high));
}
static Tensor hardshrink(const Tensor& a, const Scalar& limit) {
    facade::check_real("hardshrink_cpu", a);
    facade::check_fits(limit, facade::computed_in(a.scalar_type()));
    const Tensor above = call<Tensor>("aten::ge", "Tensor", a, facade::number_in(a, -limit));
    const Tensor below = call<Tensor>("aten::le", "Tensor", a, facade::number_in(a, limit));
    return facade::chosen_by(call<Tensor>("aten::logical_and", "", above, below), facade::number_in(a, 0), a);
}
// The places above zero are left out of the power: its gradient there could be infinite, and zero of it is no number.
static Tensor elu(const Tensor& a, const Scalar& alpha, const Scalar& scale, const Scalar& input_scale) {
    facade::check_real("elu_cpu", a);
    for (const Scalar& s : {alpha, scale, input_scale}) {
        facade::check_fits(s, facade::computed_in(a.scalar_type()));
    }
    const Tensor x = facade::widened(a);
    Tensor below = facade::times(call<Tensor>("aten::clamp_max", "Tensor", x, facade::number_in(x, 0)), input_scale);
    below = facade::times(call<Tensor>("aten::expm1", "", below), alpha.toDouble() * scale.toDouble());
    return facade::converted(
        facade::chosen_by(facade::binary("aten::le", "Tensor", x, 0), below, facade::times(x, scale)), a.scalar_type());
}
static Tensor& elu_(Tensor& a, const Scalar& alpha, const Scalar& scale, const Scalar& input_scale) {
    return facade::written(a, elu(a, alpha, scale, input_scale));
}
static Tensor celu(const Tensor& a, const Scalar& alpha) {
    if (alpha.equal(0)) {
        facade::fail("ZeroDivisionError: alpha cannot be 0 for CELU");
    }
    return elu(a, alpha, 1, 1 / alpha.toDouble());
}
static Tensor& celu_(Tensor& a, const Scalar& alpha) { return facade::written(a, celu(a, alpha)); }
static Tensor softplus(const Tensor& a, const Scalar& beta, const Scalar& threshold) {
    facade::check_real("softplus_cpu", a);
    facade::check_fits(beta, facade::computed_in(a.scalar_type()));
    facade::check_fits(threshold, facade::computed_in(a.scalar_type()));
    const Tensor x = facade::widened(a), scaled = facade::times(x, beta);
    Tensor below = call<Tensor>("aten::exp", "",
                                call<Tensor>("aten::clamp_max", "Tensor", scaled, facade::number_in(x, threshold)));
    below = facade::binary("aten::div", "Tensor", call<Tensor>("aten::log1p", "", below), beta);
    return facade::converted(facade::chosen_by(facade::binary("aten::gt", "Tensor", scaled, threshold), x, below),
                             a.scalar_type());
}
static double largest_number(ScalarType t) {
    return t == ScalarType::Half       ? 65504
           : t == ScalarType::BFloat16 ? 0x1.FEp127
           : t == ScalarType::Float    ? std::numeric_limits<float>::max()
                                       : std::numeric_limits<double>::max();
}
static Tensor softshrink(const Tensor& a, const Scalar& limit) {
    facade::check_real("softshrink_cpu", a);
    const double largest = largest_number(a.scalar_type());
    if (limit.toDouble() < 0 || limit.toDouble() > largest) {
        facade::fail(facade::text("lambda must be in range [0, ", largest, "] for input dtype ",
                                  c10::toString(a.scalar_type()), ", but found ", limit.toDouble()));
    }
    const Tensor bound = facade::number_in(a, limit);
    const Tensor rest = facade::chosen_by(call<Tensor>("aten::gt", "Tensor", a, bound), facade::difference(a, bound, 1),
                                          facade::sum_of(a, bound, 1));
    const Tensor inside = call<Tensor>("aten::le", "Tensor", call<Tensor>("aten::abs", "", a), bound);
    return facade::chosen_by(inside, facade::times(a, 0), rest);
}
// For a factor of one: with the last bits of torch's kernel.
static Tensor index_add(const Tensor& a, int64_t dim, const Tensor& index, const Tensor& source, const Scalar& alpha) {
    const Tensor result = call<Tensor>("aten::clone", "", a, std::optional<MemoryFormat>());
    return index_add_(result, dim, index, source, alpha);
}
static Tensor& index_add_(const Tensor& a, int64_t dim, const Tensor& index, const Tensor& source,
                          const Scalar& alpha) {
    auto with_one = [](const Tensor& t) {
        return t.dim() > 0 ? t : call<Tensor>("aten::unsqueeze", "", t, int64_t{0});
    };
    const Tensor into = with_one(a), at = with_one(index);
    Tensor from = with_one(source);
    const int64_t along = facade::checked_index_add(into, dim, at, from);
    facade::check_fits(alpha, from.scalar_type());
    const Scalar factor = facade::factor_for(alpha, from.scalar_type());
    from = facade::converted(facade::times(from, factor), from.scalar_type());
    const Tensor places = facade::converted(at, ScalarType::Long);
    if (into.dim() == 1 && isReducedFloatingType(into.scalar_type())) {
        in_place("aten::index_put_", "", into, std::vector<std::optional<Tensor>>{places}, from, true);
        return const_cast<Tensor&>(a);
    }
    std::vector<int64_t> shape(into.dim(), 1);
    shape[along] = places.numel();
    in_place("aten::scatter_add_", "", into, along,
             call<Tensor>("aten::expand", "", call<Tensor>("aten::view", "", places, IntArrayRef(shape)), from.sizes(),
                          false),
             from);
    return const_cast<Tensor&>(a);
}
// Of the norms the stable ABI can leave out one number: 2.
static Tensor norm_of(const Tensor& a, const std::optional<Scalar>& p, IntArrayRef dim, bool keepdim,
                      std::optional<ScalarType> dtype) {
    if (!p || p->equal(2)) {
        return dtype ? call<Tensor>("aten::norm", "ScalarOpt_dim_dtype", a, std::optional<int64_t>(), dim, keepdim,
                                    *dtype)
                     : call<Tensor>("aten::norm", "ScalarOpt_dim", a, std::optional<int64_t>(), dim, keepdim);
    }
    if (dtype && *dtype != call<ScalarType>("aten::promote_types", "", a.scalar_type(), *dtype)) {
        facade::fail(facade::text("linalg.vector_norm: the dtype of the input (", c10::toString(a.scalar_type()),
                                  ") should be convertible without narrowing to the specified dtype (",
                                  c10::toString(*dtype), ")"));
    }
    if (dtype && facade::category(*dtype) < facade::Category::Real) {
        facade::fail(facade::text("norm(): the desired output dtype should be either floating point or complex. Got ",
                                  c10::toString(*dtype), " instead."));
    }
    return facade::norm_by_powers(a, p->toDouble(), dim, keepdim, dtype);
}
static Tensor norm_ScalarOpt_dim(const Tensor& a, const std::optional<Scalar>& p, IntArrayRef dim, bool keepdim) {
    return norm_of(a, p, dim, keepdim, std::nullopt);
}
static Tensor norm_ScalarOpt_dim_dtype(const Tensor& a, const std::optional<Scalar>& p, IntArrayRef dim, bool keepdim,
                                       ScalarType dtype) {
    return norm_of(a, p, dim, keepdim, dtype);
}
static Tensor norm_ScalarOpt_dtype(const Tensor& a, const std::optional<Scalar>& p, ScalarType dtype) {
    return norm_of(a, p, {}, false, dtype);
}
static Tensor norm_Scalar(const Tensor& a, const Scalar& p) { return norm_of(a, p, {}, false, std::nullopt); }
static Tensor linalg_vector_norm(const Tensor& a, const Scalar& ord, OptionalIntArrayRef dim, bool keepdim,
                                 std::optional<ScalarType> dtype) {
    return norm_of(a, ord, dim ? *dim : IntArrayRef(), keepdim, dtype);
}
static Tensor dist(const Tensor& a, const Tensor& b, const Scalar& p) {
    return norm_Scalar(facade::difference(a, b, 1), p);
}
// torch's older operators state two corrections by a bool; another one divides by another number of elements.
static bool is_unbiased(const std::optional<Scalar>& correction) { return !correction || correction->equal(1); }
static double correcting(const Tensor& a, OptionalIntArrayRef dim, const std::optional<Scalar>& correction) {
    if (!correction || correction->equal(0) || correction->equal(1)) {
        return 1;
    }
    const double count = facade::reduced_count(a, dim);
    return count / std::max(0.0, count - correction->toDouble());
}
static Tensor var_correction(const Tensor& a, OptionalIntArrayRef dim, const std::optional<Scalar>& correction,
                             bool keepdim) {
    return facade::times(call<Tensor>("aten::var", "dim", a, dim, is_unbiased(correction), keepdim),
                         correcting(a, dim, correction));
}
static Tensor std_correction(const Tensor& a, OptionalIntArrayRef dim, const std::optional<Scalar>& correction,
                             bool keepdim) {
    return facade::times(call<Tensor>("aten::std", "dim", a, dim, is_unbiased(correction), keepdim),
                         std::sqrt(correcting(a, dim, correction)));
}
static std::tuple<Tensor, Tensor> var_mean_correction(const Tensor& a, OptionalIntArrayRef dim,
                                                      const std::optional<Scalar>& correction, bool keepdim) {
    auto [var, mean] =
        call<std::tuple<Tensor, Tensor>>("aten::var_mean", "dim", a, dim, is_unbiased(correction), keepdim);
    return {facade::times(var, correcting(a, dim, correction)), mean};
}
static std::tuple<Tensor, Tensor> std_mean_correction(const Tensor& a, OptionalIntArrayRef dim,
                                                      const std::optional<Scalar>& correction, bool keepdim) {
    auto [std, mean] =
        call<std::tuple<Tensor, Tensor>>("aten::std_mean", "dim", a, dim, is_unbiased(correction), keepdim);
    return {facade::times(std, std::sqrt(correcting(a, dim, correction))), mean};
}
