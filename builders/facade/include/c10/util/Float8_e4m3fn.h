#include <opforge/facade/facade.h>
#include <torch/headeronly/util/Float8_e4m3fn.h>
