// A boxed kernel with the types that boxing hides, and their comparison with a schema: see opforge/kernel_types.h.
#pragma once

#include <opforge/exceptions.h>

#include <cstring>
#include <string>

namespace opforge {

// Not inlined, as all of this file: that would take longer to compile than the kernels of some ops.
[[gnu::cold, gnu::noinline]] inline void append(std::string& text, const char* word) { text.append(word); }

// The value of TORCH_BOX: what torch calls, with the types that boxing hides.
struct Kernel {
    Boxed boxed;
    void (*append_types)(std::string&);
    const char* place;     // FILE:LINE of TORCH_BOX
    const char* function;  // its argument, as it is in the source

    constexpr operator Boxed() const { return boxed; }
};

// Returns what follows the next `last`.
[[gnu::cold, gnu::noinline]] inline const char* behind(const char* from, char last) {
    const char* end = std::strchr(from, last);
    return end ? end + 1 : from + std::strlen(from);
}

// Appends the types from `at` to the ")" or the end of the line that ends the list. Returns what follows.
[[gnu::cold, gnu::noinline]] inline const char* append_listed_types(const char* at, std::string& text) {
    constexpr const char* kWord = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
    int depth = 0;
    for (bool is_type = true; *at && *at != '\n';) {
        if (const size_t length = is_type ? std::strspn(at, kWord) : 0) {
            text.append(at, length);
            for (at += length; *at == '(' || *at == '[' || *at == '?';) {  // Tensor(a!)[2]?
                append(text, *at == '[' ? "[]" : *at == '?' ? "?" : "");
                at = *at == '?' ? at + 1 : behind(at, *at == '(' ? ')' : ']');
            }
            append(text, "|");
            is_type = false;  // until the next comma: a name and a default
            continue;
        }
        const char letter = *at++;
        if (letter == '"' || letter == '\'') {
            at = behind(at, letter);
        } else if (letter == '(' || letter == '[') {
            ++depth;
        } else if (letter == ')' || letter == ']') {
            if (depth-- == 0) {
                break;
            }
        } else if (letter == ',' && depth == 0) {
            is_type = true;
        }
    }
    return at;
}

// Appends a line for a kernel, unless the schema of its op is among `schemas` and has exactly its types. Whether other
// types fit, and kernels for other libraries' ops, is for the loader to say: it knows torch's rules and its schemas.
[[gnu::cold, gnu::noinline]] inline void append_unproven(const char* schemas, const char* ns, const char* name,
                                                         const Kernel& kernel, std::string& lines) {
    std::string op, types, expected;
    if (!std::strstr(name, "::")) {
        append(op, ns);
        append(op, "::");
    }
    append(op, name);
    kernel.append_types(types);
    for (const char* line = schemas; *line; line = behind(line, '\n')) {
        if (std::strncmp(line, op.c_str(), op.size()) == 0 && line[op.size()] == '(') {
            const char* at = append_listed_types(line + op.size() + 1, expected);
            append(expected, "=|");
            at += std::strspn(at, " ->");
            append_listed_types(*at == '(' ? at + 1 : at, expected);
            if (std::strcmp(expected.c_str(), types.c_str()) == 0) {
                return;
            }
            break;
        }
    }
    for (const char* word : {op.c_str(), "\t", types.c_str(), "\t", kernel.place, "\t", kernel.function, "\n"}) {
        append(lines, word);
    }
}

}  // namespace opforge
