#include "value.h"
extern "C" __attribute__((visibility("default"))) int value() { return VALUE; }
