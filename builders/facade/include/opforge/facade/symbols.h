// Functions of libtorch that the stable ABI does not have, looked up by their names at the first call. Each takes and
// returns nothing whose layout differs between torch 2.10 and 2.15; if a later torch has no function of the name, the
// call is an error that says so.
#pragma once
#include "errors.h"

#pragma GCC visibility push(hidden)
namespace c10 {
inline namespace opforge_facade {
namespace facade {
// Returns the function of a name. `what` is what calls it, for the error.
template <class F>
F* torch_function(const char* what, const char* symbol, const char* library = "libtorch_cpu.so") {
    void* const opened = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    void* const found = opened ? dlsym(opened, symbol) : nullptr;
    if (!found) {
        fail(text(what, ": this torch has no function ", symbol));
    }
    return reinterpret_cast<F*>(found);
}
}  // namespace facade
}  // namespace opforge_facade
}  // namespace c10
#pragma GCC visibility pop
