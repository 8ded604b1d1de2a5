#include <opforge/facade/facade.h>
#include <torch/headeronly/util/floating_point_utils.h>
