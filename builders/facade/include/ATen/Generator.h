#include <opforge/facade/facade.h>
