// Registration at load for the `torch` ABI: the counterpart of registration.h, through torch's C++ interface.
//
// Two symbols leave the library:
//   opforge_describe  the namespaces that it defines ops in;
//   opforge_register  registers every block, and undoes all of it on the first exception.
#pragma once

#include <torch/library.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::detail {

// One block of TORCH_LIBRARY or its kin, in the place of torch's TorchLibraryInit.
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

    // Kernels may also be for a namespace of others, such as aten, which keeps its name.
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

// One namespace a line.
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

// Registers every block, those of its own namespaces under their names followed by `suffix`. Returns null, or the
// reason why nothing was.
OPFORGE_EXPORT const char* opforge_register(const char* suffix) {
    static std::string problem;
    // Kept for the life of the process: deleting one takes its ops back.
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
