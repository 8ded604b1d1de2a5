#include <opforge/facade/facade.h>
#include <torch/headeronly/util/quint2x4.h>
