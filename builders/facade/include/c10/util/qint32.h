#include <opforge/facade/facade.h>
#include <torch/headeronly/util/qint32.h>
