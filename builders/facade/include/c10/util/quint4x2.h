#include <opforge/facade/facade.h>
#include <torch/headeronly/util/quint4x2.h>
