#include <opforge/facade/cuda_generator.h>
