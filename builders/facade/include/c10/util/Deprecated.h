#include <opforge/facade/facade.h>
#include <torch/headeronly/util/Deprecated.h>
