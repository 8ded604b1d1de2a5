// Registration at load: a library's definitions are data until the loader calls `opforge_register`.
//
// The library exports two symbols:
//   opforge_describe  returns the schemas that it will define, so that the loader can detect conflicts first;
//   opforge_register  defines and implements them, checks every return code, and undoes everything on the first
//   failure.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/version.h>

#include <opforge/exceptions.h>

#include <cstdint>
#include <string>
#include <vector>

namespace opforge {

// The type of `m` inside a STABLE_TORCH_LIBRARY block. Stores the first failure; later calls do nothing.
class __attribute__((visibility("hidden"))) Library {
public:
    using Boxed = void (*)(StableIValue*, uint64_t, uint64_t);

    // A library that only records the schemas.
    Library(const char* ns, std::string* listing) : ns_(ns), listing_(listing) {}

    // A library that registers them. `key` is a dispatch key, or null for a block of definitions.
    Library(const std::string& ns, const char* key, const char* file, uint32_t line) : ns_(ns) {
        // Always a fragment, since several libraries may define ops in one package's namespace.
        const AOTITorchError code = key ? aoti_torch_library_init_impl(ns.c_str(), key, file, line, &handle_)
                                        : aoti_torch_library_init_fragment(ns.c_str(), file, line, &handle_);
        if (code != AOTI_TORCH_SUCCESS) {
            handle_ = nullptr;
            fail("torch refused the namespace ", ns.c_str());
        }
    }

    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;

    // Not inlined: a block calls these once per op, and inlining would take longer to compile than all of its kernels.
    [[gnu::noinline]] Library& def(const char* schema) {
        if (listing_) {
            listing_->append(ns_).append("::").append(schema).append("\n");
        } else if (ok() && aoti_torch_library_def(handle_, schema) != AOTI_TORCH_SUCCESS) {
            fail("torch refused the definition ", schema);
        }
        return *this;
    }

#ifdef _LIBCPP_VERSION
    Library& impl(const char* name, Guarded guarded) { return impl_boxed(name, guarded.kernel); }

    // Deleted because the exceptions of a bare kernel would reach another C++ runtime: write TORCH_BOX(&kernel), or
    // OPFORGE_BOXED(&kernel) for a kernel that is boxed by hand.
    Library& impl(const char* name, Boxed kernel) = delete;
#else
    Library& impl(const char* name, Boxed kernel) { return impl_boxed(name, kernel); }
#endif

    [[gnu::noinline]] Library& impl_boxed(const char* name, Boxed kernel) {
        if (!listing_ && ok() && torch_library_impl(handle_, name, kernel, TORCH_ABI_VERSION) != AOTI_TORCH_SUCCESS) {
            fail("torch refused the kernel of ", name);
        }
        return *this;
    }

// torch 2.10 and 2.11 do not define TORCH_VERSION_2_12_0, and #if takes an undefined name as 0.
#if defined(TORCH_VERSION_2_12_0) && TORCH_FEATURE_VERSION >= TORCH_VERSION_2_12_0
    Library& def(const char* schema, const std::vector<at::Tag>& tags) {
        if (listing_) {
            return def(schema);
        }
        std::vector<int32_t> values;
        for (const at::Tag tag : tags) {
            values.push_back(torch::stable::detail::to<int32_t>(torch::stable::detail::from(tag)));
        }
        const auto count = static_cast<int32_t>(values.size());
        if (ok() && torch_library_def_with_tags(handle_, schema, values.data(), count) != AOTI_TORCH_SUCCESS) {
            fail("torch refused the definition ", schema);
        }
        return *this;
    }
#endif

    bool ok() const { return error_.empty(); }
    const std::string& error() const { return error_; }
    void undo() {
        if (handle_) {
            aoti_torch_delete_library_object(handle_);
            handle_ = nullptr;
        }
    }

private:
    void fail(const char* what, const char* which) { error_ = std::string(what) + which; }

    std::string ns_;
    std::string* listing_ = nullptr;
    TorchLibraryHandle handle_ = nullptr;
    std::string error_;
};

struct Block {
    const char* ns;
    const char* key;  // null for definitions
    void (*fill)(Library&);
    const char* file;
    uint32_t line;
};

}  // namespace opforge

// The linker collects the pointers to all blocks, from all units, between these two symbols.
extern "C" __attribute__((visibility("hidden"))) const opforge::Block* const __start_opforge_blocks[];
extern "C" __attribute__((visibility("hidden"))) const opforge::Block* const __stop_opforge_blocks[];

#define OPFORGE_EXPORT extern "C" __attribute__((visibility("default"), used)) inline

// Returns one `ns::schema` per line. The text is valid until the next call; the loader does not call it concurrently.
OPFORGE_EXPORT const char* opforge_describe() {
    static std::string listing;
    listing.clear();
    for (auto block = __start_opforge_blocks; block != __stop_opforge_blocks; ++block) {
        if (!(*block)->key) {
            opforge::Library library((*block)->ns, &listing);
            (*block)->fill(library);
        }
    }
    return listing.c_str();
}

// Registers every block under its namespace followed by `suffix`. Returns null, or the reason why nothing was
// registered.
OPFORGE_EXPORT const char* opforge_register(const char* suffix) {
    static std::string problem;
    std::vector<opforge::Library*> done;  // never deleted: deleting one would remove its ops
    problem.clear();
    for (const bool definitions : {true, false}) {
        for (auto block = __start_opforge_blocks; block != __stop_opforge_blocks && problem.empty(); ++block) {
            if (((*block)->key == nullptr) == definitions) {
                const std::string ns = std::string((*block)->ns) + suffix;
                done.push_back(new opforge::Library(ns, (*block)->key, (*block)->file, (*block)->line));
                if (done.back()->ok()) {
                    (*block)->fill(*done.back());
                }
                problem = done.back()->error();
            }
        }
    }
    if (problem.empty()) {
        return nullptr;
    }
    for (auto library = done.rbegin(); library != done.rend(); ++library) {
        (*library)->undo();
        delete *library;
    }
    return problem.c_str();
}

#undef OPFORGE_EXPORT

#define OPFORGE_BLOCK(ns, key, m, uid) OPFORGE_BLOCK_(ns, key, m, uid)
#define OPFORGE_BLOCK_(ns, key, m, uid)                                                                                \
    static void opforge_fill_##ns##_##uid(opforge::Library&);                                                          \
    static constexpr opforge::Block opforge_block_##ns##_##uid = {#ns, key, &opforge_fill_##ns##_##uid, __FILE__,      \
                                                                  __LINE__};                                           \
    __attribute__((section("opforge_blocks"), used)) static const opforge::Block* const opforge_pointer_##ns##_##uid = \
        &opforge_block_##ns##_##uid;                                                                                   \
    static void opforge_fill_##ns##_##uid(opforge::Library& m)
