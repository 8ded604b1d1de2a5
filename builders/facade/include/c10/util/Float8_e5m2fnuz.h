#include <opforge/facade/facade.h>
#include <torch/headeronly/util/Float8_e5m2fnuz.h>
