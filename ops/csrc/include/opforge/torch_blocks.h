// Registration at load for the `torch` ABI: the counterpart of registration.h, through torch's C++ interface.
//
// The library exports two symbols:
//   opforge_describe  returns the namespaces that it defines ops in;
//   opforge_register  registers every block, and undoes everything on the first exception.
#pragma once

#include <torch/library.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::detail {

// One block of TORCH_LIBRARY, _FRAGMENT or _IMPL, in place of torch's TorchLibraryInit.
class __attribute__((visibility("hidden"))) OpforgeBlock {
public:
    using Blocks = std::vector<const OpforgeBlock*>;

    OpforgeBlock(Library::Kind kind, void (*fill)(Library&), const char* ns, std::optional<c10::DispatchKey> key,
                 const char* file, uint32_t line)
        : kind_(kind), fill_(fill), ns_(ns), key_(key), file_(file), line_(line) {
        all().push_back(this);
    }

    static Blocks& all() {
        static Blocks blocks;
        return blocks;
    }

    // Kernels may also be for another library's namespace, such as aten, whose name must not change.
    bool defines() const { return kind_ != Library::IMPL; }
    const std::string& ns() const { return ns_; }

    std::unique_ptr<Library> registered(const std::string& suffix) const {
        bool own = false;
        for (const OpforgeBlock* block : all()) {
            own = own || (block->defines() && block->ns_ == ns_);
        }
        auto library = std::make_unique<Library>(kind_, own ? ns_ + suffix : ns_, key_, file_, line_);
        fill_(*library);
        return library;
    }

private:
    Library::Kind kind_;
    void (*fill_)(Library&);
    std::string ns_;
    std::optional<c10::DispatchKey> key_;
    const char* file_;
    uint32_t line_;
};

}  // namespace torch::detail

#define OPFORGE_EXPORT extern "C" __attribute__((visibility("default"), used)) inline

// Returns one namespace per line.
OPFORGE_EXPORT const char* opforge_describe() {
    static std::string listing;
    listing.clear();
    for (const auto* block : torch::detail::OpforgeBlock::all()) {
        if (block->defines()) {
            listing.append(block->ns()).append("\n");
        }
    }
    return listing.c_str();
}

// Registers every block. The names of the library's own namespaces are followed by `suffix`. Returns null, or the
// reason why nothing was registered.
OPFORGE_EXPORT const char* opforge_register(const char* suffix) {
    static std::string problem;
    // Never deleted: deleting one would remove its ops.
    static auto& kept = *new std::vector<std::unique_ptr<torch::Library>>;
    std::vector<std::unique_ptr<torch::Library>> done;
    try {
        for (const auto* block : torch::detail::OpforgeBlock::all()) {
            done.push_back(block->registered(suffix));
        }
    } catch (const c10::Error& error) {
        problem = error.what_without_backtrace();
        return problem.c_str();
    } catch (const std::exception& error) {
        problem = error.what();
        return problem.c_str();
    }
    for (auto& library : done) {
        kept.push_back(std::move(library));
    }
    return nullptr;
}

#undef OPFORGE_EXPORT
