#include <opforge/facade/cuda_blas.h>
