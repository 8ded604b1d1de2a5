#include <opforge/facade/cuda.h>
