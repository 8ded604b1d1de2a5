// Finds a driver library and its functions, or the reason why that failed.

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "driver.h"

namespace opforge::launcher {

const char* refuse(const char* format, ...) {
    thread_local char text[512];
    va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof text, format, values);
    va_end(values);
    return text;
}

const char* open_library(const char* what, const char* const* names, void** library) {
    char reasons[384] = "";
    for (const char* const* name = names; *name; ++name) {
        *library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);
        if (*library) return nullptr;
        const char* reason = dlerror();
        const size_t used = std::strlen(reasons);
        std::snprintf(reasons + used, sizeof reasons - used, "%s%s", used ? "; " : "", reason ? reason : *name);
    }
    return refuse("%s could not be loaded (%s)", what, reasons);
}

const char* find_symbol(void* library, const char* what, const char* name, void** out) {
    *out = dlsym(library, name);
    return *out ? nullptr : refuse("%s is too old: it has no function %s", what, name);
}

}  // namespace opforge::launcher
