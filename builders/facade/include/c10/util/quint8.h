#include <opforge/facade/facade.h>
#include <torch/headeronly/util/quint8.h>
