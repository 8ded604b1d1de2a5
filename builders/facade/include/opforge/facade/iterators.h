// py::make_iterator, make_key_iterator and make_value_iterator: Python's iterators over ranges of C++.
#pragma once
#include "classes.h"

namespace opforge_facade_python {
// A place in a range, and its end. What an iterator reads there is a part of its type, as of its Python class.
template <class Read, ::pybind11::return_value_policy, class I, class S>
struct Range {
    I place;
    S end;
    bool stays;  // for the next element: at the begin, and behind the end
};
template <class Read, ::pybind11::return_value_policy Policy, class I, class S>
struct IsOpaque<Range<Read, Policy, I, S>> : std::true_type {};
}  // namespace opforge_facade_python

namespace pybind11 {
inline namespace opforge_facade {
namespace facade {
// An iterator whose signatures name its elements.
template <class V>
class iterator_of : public iterator {
public:
    using iterator::iterator;
};
struct read_element {
    template <class I>
    decltype(auto) operator()(I& place) const {
        return *place;
    }
};
// Reads a part of a pair: of a pair that the iterator makes anew, a copy.
template <size_t N>
struct read_part {
    template <class I>
    decltype(auto) operator()(I& place) const {
        if constexpr (std::is_reference_v<decltype(*place)>) {
            return (std::get<N>(*place));
        } else {
            return std::tuple_element_t<N, std::decay_t<decltype(*place)>>(std::get<N>(*place));
        }
    }
};
template <class Read, return_value_policy Policy, class I, class S, class... E>
auto iterator_over(I first, S last, const E&... extras) {
    using Range = py_detail::Range<Read, Policy, I, S>;
    using Element = decltype(Read()(first));
    if (!py_detail::class_of<Range>()) {
        class_<Range>(handle(), "iterator", module_local())
            .def(
                "__iter__", [](Range& range) -> Range& { return range; }, pos_only())
            .def(
                "__next__",
                [](Range& range) -> Element {
                    if (!std::exchange(range.stays, false)) {
                        ++range.place;
                    }
                    if (range.place == range.end) {
                        range.stays = true;
                        throw stop_iteration();
                    }
                    return Read()(range.place);
                },
                extras..., pos_only(), Policy);
    }
    return iterator_of<std::decay_t<Element>>(py_detail::object_of_value(Range{std::move(first), last, true}));
}
}  // namespace facade

#define OPFORGE_ITERATOR(NAME, READ)                                                                     \
    template <return_value_policy Policy = return_value_policy::reference_internal, class I, class S,    \
              class = decltype(std::declval<I&>() == std::declval<S&>()), class... E>                    \
    auto NAME(I first, S last, const E&... extras) {                                                     \
        return facade::iterator_over<READ, Policy>(std::move(first), std::move(last), extras...);        \
    }                                                                                                    \
    template <return_value_policy Policy = return_value_policy::reference_internal, class T, class... E> \
    auto NAME(T& range, const E&... extras) {                                                            \
        return facade::iterator_over<READ, Policy>(std::begin(range), std::end(range), extras...);       \
    }
OPFORGE_ITERATOR(make_iterator, facade::read_element)
OPFORGE_ITERATOR(make_key_iterator, facade::read_part<0>)
OPFORGE_ITERATOR(make_value_iterator, facade::read_part<1>)
#undef OPFORGE_ITERATOR
}  // namespace opforge_facade
}  // namespace pybind11

namespace opforge_facade_python {
template <class V>
struct Convert<pybind11::facade::iterator_of<V>> {
    static Ref cast(const pybind11::facade::iterator_of<V>& value) { return value.ref(); }
    static std::string name(bool) { return "collections.abc.Iterator[" + Convert<V>::name(false) + "]"; }
};
}  // namespace opforge_facade_python
