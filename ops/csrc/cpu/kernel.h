#pragma once

#include <cstdint>

namespace opforge::cpu {

// Updates elements [begin, end) of one parameter. `data` holds the parameter, its gradient and its states, in the order
// that the op lists them; `scalars` is the op's own struct.
using Kernel = void (*)(const void* scalars, void* const* data, int64_t begin, int64_t end);

constexpr int kMaxOperands = 4;
constexpr int kGradient = 1;  // the operand that is only read

}  // namespace opforge::cpu
