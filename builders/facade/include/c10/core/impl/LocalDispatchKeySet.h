#pragma once
#include <opforge/facade/facade.h>
