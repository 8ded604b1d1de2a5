// The blocks of TORCH_LIBRARY, _FRAGMENT and _IMPL, which wait for the loader.
#pragma once

#include <torch/library.h>

#include <opforge/registration.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

namespace torch::detail {

template <typename F>
auto without_backtrace(const F& f) {
    try {
        return f();
    } catch (const c10::Error& error) {
        throw std::runtime_error(error.what_without_backtrace());
    }
}

class __attribute__((visibility("hidden"))) OpforgeRegistration final : public opforge::Registration {
public:
    OpforgeRegistration(Library::Kind kind, const std::string& ns, std::optional<c10::DispatchKey> key,
                        const char* file, uint32_t line)
        : library(kind, ns, key, file, line) {}

    Library library;
};

// One block, in place of torch's TorchLibraryInit.
class __attribute__((visibility("hidden"))) OpforgeBlock final : public opforge::Block {
public:
    OpforgeBlock(Library::Kind kind, void (*fill)(Library&), const char* ns, std::optional<c10::DispatchKey> key,
                 const char* file, uint32_t line)
        : Block(ns, kind != Library::IMPL), kind_(kind), fill_(fill), key_(key), file_(file), line_(line) {}

    opforge::Registration* open(const char* in) const override {
        return without_backtrace([&] { return new OpforgeRegistration(kind_, in, key_, file_, line_); });
    }
    void fill(opforge::Registration& registration) const override {
        without_backtrace([&] { fill_(static_cast<OpforgeRegistration&>(registration).library); });
    }
    void describe(std::string& lines) const override { lines.append(ns).append("\n"); }

private:
    Library::Kind kind_;
    void (*fill_)(Library&);
    std::optional<c10::DispatchKey> key_;
    const char* file_;
    uint32_t line_;
};

}  // namespace torch::detail
