#include <opforge/facade/fast_atomics.cuh>
