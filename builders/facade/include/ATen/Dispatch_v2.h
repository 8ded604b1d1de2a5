#include <opforge/facade/facade.h>
#include <torch/headeronly/core/Dispatch_v2.h>
#define AT_DISPATCH_V2(TYPE, NAME, BODY, ...) \
    THO_DISPATCH_V2_TMPL(AT_DISPATCH_SWITCH, AT_DISPATCH_CASE, TYPE, NAME, AT_WRAP(BODY), __VA_ARGS__)
