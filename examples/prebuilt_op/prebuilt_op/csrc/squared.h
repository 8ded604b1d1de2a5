#pragma once

template <typename T>
inline T squared_relu(T x) {
    return x > T(0) ? x * x : T(0);
}
