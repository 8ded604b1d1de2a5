// The blocks of STABLE_TORCH_LIBRARY, _FRAGMENT and _IMPL, which wait for the loader.
//
// Defines two classes with the names and the interfaces of torch's own, so that torch's macros, and functions that take
// a `torch::stable::detail::StableLibrary&`, use them unchanged. torch's register ops as they are constructed, and
// ignore torch's error codes.
//
// An op whose kernels read the stack themselves, and have no tensors of torch's, includes this header alone: torch's
// takes longer to compile than such kernels.
#pragma once

#include <opforge/exceptions.h>
#include <opforge/kernel.h>
#include <opforge/registration.h>
#include <opforge/shim.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

// A call of the function is an error with this text, in the line of the call.
#ifdef __clang__
#define OPFORGE_UNAVAILABLE(text) __attribute__((unavailable(text)))
#else
#define OPFORGE_UNAVAILABLE(text) __attribute__((error(text)))
#endif

namespace torch::stable::detail {

// The type of `m` inside a block. Stores the first failure; later calls do nothing.
class __attribute__((visibility("hidden"))) StableLibrary final : public opforge::Registration {
public:
    enum class Kind { DEF, IMPL, FRAGMENT };
    using Boxed = void (*)(StableIValue*, uint64_t, uint64_t);

    // A library that only lists: its schemas, or, if `schemas` are those of all blocks, the kernels that are not known
    // to fit theirs, and if they are for ops of others all.
    [[gnu::cold, gnu::noinline]] StableLibrary(const char* ns, std::string* lines, const std::string* schemas = nullptr,
                                               bool is_for_others = false)
        : ns_(ns), lines_(lines), schemas_(schemas), is_for_others_(is_for_others) {}

    // A library that registers them in the namespace `in`, which is `ns`, or `ns` with a suffix. `key` is a dispatch
    // key, or null for definitions.
    [[gnu::cold, gnu::noinline]] StableLibrary(Kind kind, const char* ns, const char* in, const char* key,
                                               const char* file, uint32_t line)
        : ns_(ns) {
        // Never a DEF, since several libraries may define ops in one package's namespace.
        const AOTITorchError code = kind == Kind::IMPL ? aoti_torch_library_init_impl(in, key, file, line, &handle_)
                                                       : aoti_torch_library_init_fragment(in, file, line, &handle_);
        if (code != AOTI_TORCH_SUCCESS) {
            handle_ = nullptr;
            key ? fail("torch refused the dispatch key ", key) : fail("torch refused the namespace ", ns);
        }
    }

    StableLibrary(const StableLibrary&) = delete;
    StableLibrary& operator=(const StableLibrary&) = delete;

    [[gnu::cold, gnu::noinline]] ~StableLibrary() override {
        if (handle_) {
            aoti_torch_delete_library_object(handle_);
        }
    }

    // Not inlined: a block calls these once per op, and inlining would take longer to compile than all of its kernels.
    [[gnu::cold, gnu::noinline]] StableLibrary& def(const char* schema) {
        schema = local(schema);
        if (lines_) {
            list(schema);
        } else if (ok() && aoti_torch_library_def(handle_, schema) != AOTI_TORCH_SUCCESS) {
            fail("torch refused the definition ", schema);
        }
        return *this;
    }

    [[gnu::cold, gnu::noinline]] StableLibrary& impl(const char* name, opforge::Kernel kernel) {
        if (!schemas_) {
            return impl_boxed(name, kernel.boxed);
        }
        opforge::append_unproven(schemas_->c_str(), ns_.c_str(), local(name), kernel, *lines_);
        return *this;
    }

#ifdef _LIBCPP_VERSION
    StableLibrary& impl(const char* name, opforge::Guarded kernel) { return impl_boxed(name, kernel.boxed); }

    // Deleted because the exceptions of a bare kernel would reach another C++ runtime: write TORCH_BOX(&kernel), or
    // OPFORGE_BOXED(&kernel) for a kernel that is boxed by hand.
    StableLibrary& impl(const char* name, Boxed kernel) = delete;
#else
    StableLibrary& impl(const char* name, Boxed kernel) { return impl_boxed(name, kernel); }
#endif

    [[gnu::cold, gnu::noinline]] StableLibrary& impl_boxed(const char* name, Boxed kernel) {
        name = local(name);
        if (schemas_ && is_for_others_) {  // a kernel of unknown types
            for (const char* word : {ns_.c_str(), "::", name, "\n"}) {
                opforge::append(*lines_, word);
            }
        }
        if (!lines_ && ok() && torch_library_impl(handle_, name, kernel, TORCH_ABI_VERSION) != AOTI_TORCH_SUCCESS) {
            fail("torch refused the kernel of ", name);
        }
        return *this;
    }

// Headers older than a version do not define its name, and #if takes an undefined name as 0. TORCH_BOX is torch's.
#if defined(TORCH_BOX) && defined(TORCH_VERSION_2_12_0) && TORCH_FEATURE_VERSION >= TORCH_VERSION_2_12_0
    StableLibrary& def(const char* schema, const std::vector<at::Tag>& tags) {
        schema = local(schema);
        if (lines_) {
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
#elif defined(TORCH_BOX) && defined(TORCH_VERSION_2_12_0)
    OPFORGE_UNAVAILABLE("tags need torch_target=\"2.12\" or newer")
    StableLibrary& def(const char* schema, const std::vector<at::Tag>& tags);
#endif

#if defined(TORCH_VERSION_2_13_0) && TORCH_FEATURE_VERSION >= TORCH_VERSION_2_13_0
    StableLibrary& set_python_module(const char* module, const char* context = "") {
        if (!lines_ && ok() && torch_library_set_python_module(handle_, module, context) != AOTI_TORCH_SUCCESS) {
            fail("torch refused the Python module ", module);
        }
        return *this;
    }
#else
    OPFORGE_UNAVAILABLE("set_python_module needs torch_target=\"2.13\" or newer")
    StableLibrary& set_python_module(const char* module, const char* context = "");
#endif

private:
    // A name without the block's own namespace, which may be written before it as in torch's macros.
    const char* local(const char* name) const {
        const size_t size = ns_.size();
        const bool is_own = std::strncmp(name, ns_.c_str(), size) == 0 && std::strncmp(name + size, "::", 2) == 0;
        return is_own ? name + size + 2 : name;
    }

    // One line a schema, whatever line breaks its text has.
    [[gnu::cold, gnu::noinline]] void list(const char* schema) {
        if (!schemas_) {
            opforge::append(*lines_, ns_.c_str());
            opforge::append(*lines_, "::");
            size_t at = lines_->size();
            opforge::append(*lines_, schema);
            for (char* text = lines_->data(); text[at]; ++at) {
                text[at] = text[at] == '\n' ? ' ' : text[at];
            }
            opforge::append(*lines_, "\n");
        }
    }

    bool ok() const { return problem.empty(); }
    [[gnu::cold, gnu::noinline]] void fail(const char* what, const char* which) { problem = std::string(what) + which; }

    std::string ns_;
    std::string* lines_ = nullptr;
    const std::string* schemas_ = nullptr;
    bool is_for_others_ = false;
    TorchLibraryHandle handle_ = nullptr;
};

// One block, in place of torch's class of this name.
class __attribute__((visibility("hidden"))) StableTorchLibraryInit final : public opforge::Block {
public:
    using Fill = void(StableLibrary&);

    StableTorchLibraryInit(StableLibrary::Kind kind, Fill* fill, const char* ns, const char* key, const char* file,
                           uint32_t line)
        : Block(ns, kind != StableLibrary::Kind::IMPL), kind_(kind), fill_(fill), key_(key), file_(file), line_(line) {}

    [[gnu::cold]] opforge::Registration* open(const char* in) const override {
        return new StableLibrary(kind_, ns, in, key_, file_, line_);
    }
    void fill(opforge::Registration& library) const override { fill_(static_cast<StableLibrary&>(library)); }
    [[gnu::cold]] void describe(std::string& lines) const override {
        StableLibrary library(ns, &lines);
        fill_(library);
    }
    [[gnu::cold]] void check(const std::string& schemas, std::string& lines) const override {
        StableLibrary library(ns, &lines, &schemas, is_for_others());
        fill_(library);
    }

private:
    StableLibrary::Kind kind_;
    Fill* fill_;
    const char* key_;
    const char* file_;
    uint32_t line_;
};

}  // namespace torch::stable::detail

#undef OPFORGE_UNAVAILABLE

// torch's macros, for units without torch's header.
#ifndef STABLE_TORCH_LIBRARY_FRAGMENT
#define OPFORGE_BLOCK(kind, ns, key, function, m)                                                   \
    static void function(torch::stable::detail::StableLibrary&);                                    \
    static const torch::stable::detail::StableTorchLibraryInit function##_block(                    \
        torch::stable::detail::StableLibrary::Kind::kind, &function, #ns, key, __FILE__, __LINE__); \
    void function(torch::stable::detail::StableLibrary& m)
#define STABLE_TORCH_LIBRARY_FRAGMENT(ns, m) OPFORGE_BLOCK(FRAGMENT, ns, nullptr, opforge_defines_##ns, m)
#define STABLE_TORCH_LIBRARY_IMPL(ns, k, m) OPFORGE_BLOCK(IMPL, ns, #k, opforge_implements_##ns##_##k, m)
#endif
