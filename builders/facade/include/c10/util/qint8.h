#include <opforge/facade/facade.h>
#include <torch/headeronly/util/qint8.h>
