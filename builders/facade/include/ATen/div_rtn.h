#pragma once
#include <opforge/facade/facade.h>

// The quotient rounded towards negative infinity.
template <class T>
static inline T div_rtn(T x, T y) {
    const T quotient = x / y, rest = x % y;
    return rest != 0 && (rest < 0) != (y < 0) ? quotient - 1 : quotient;
}
