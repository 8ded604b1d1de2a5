// Registration at load: what a library's blocks define is data until the loader calls `opforge_register`.
//
// A library with at least one block exports two symbols:
//   opforge_describe  returns what it will define, so that the loader can detect conflicts first, and then, after a
//                     form feed, the kernels of which the library does not know whether they fit their schemas;
//   opforge_register  registers every block, and undoes everything on the first failure. It also gets the folders of
//                     the library's roots, for the messages of errors: compiled paths begin with a root's name.
// Kernels for ops that another library defines are removed, and registered again, while the library stays: of two
// versions torch is to call those of the one that was loaded last.
#pragma once

#include <cstring>
#include <exception>
#include <string>

// Everything here runs once in a load. Unless it is cold and no part of another function, it takes longer to compile
// than the kernels of some ops.
#define OPFORGE_EXPORT extern "C" __attribute__((visibility("default"), cold)) inline

OPFORGE_EXPORT const char* opforge_describe();
OPFORGE_EXPORT const char* opforge_register(const char* suffix, const char* roots);

namespace opforge {

// Lines "NAME=FOLDER": where the roots are on this machine.
inline std::string& roots() {
    static std::string lines;
    return lines;
}

// What a block registers. Deleting it removes the ops.
class __attribute__((visibility("hidden"))) Registration {
public:
    virtual ~Registration() = default;

    Registration* previous = nullptr;
    std::string problem;  // the first failure; "" if there is none
};

// One block of a registration macro. The macro's static object is one; its constructor only adds it to the list.
class __attribute__((visibility("hidden"))) Block {
public:
    [[gnu::cold, gnu::noinline]] Block(const char* ns, bool defines) : ns(ns), defines(defines) {
        *end() = this;
        end() = &next;
    }
    virtual ~Block() = default;
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    static const Block*& first() {
        static const Block* block = nullptr;
        return block;
    }

    // Returns a new registration in the namespace `ns`. The caller owns it.
    virtual Registration* open(const char* ns) const = 0;

    // Registers the ops. Stores the first failure in `registration.problem`, or throws it.
    virtual void fill(Registration& registration) const = 0;

    // Appends a line for each op that `fill` defines: `ns::schema`, or `ns` alone if the schemas cannot be listed.
    virtual void describe(std::string& lines) const = 0;

    // Appends a line for each kernel that is not known to fit its op's schema, by what `describe` of all blocks gave;
    // for kernels for ops of others that cannot be listed `::`.
    virtual void check(const std::string&, std::string& lines) const { lines.append(is_for_others() ? "::\n" : ""); }

    // Whether it has kernels for ops that the library does not define.
    [[gnu::cold, gnu::noinline]] bool is_for_others() const {
        for (const Block* block = first(); block; block = block->next) {
            if (block->defines && std::strcmp(block->ns, ns) == 0) {
                return false;
            }
        }
        return true;
    }

    const char* const ns;
    const bool defines;  // false for kernels, which may be for another library's namespace, such as aten
    const Block* next = nullptr;

    // The compiler emits the two exported functions because of these: a library without a block has neither.
    const char* (*const describe_all)() = &opforge_describe;
    const char* (*const register_all)(const char*, const char*) = &opforge_register;

private:
    static const Block**& end() {
        static const Block** place = &first();
        return place;
    }
};

// The last of the registrations of kernels for ops of others; null if none is registered.
inline Registration*& for_others() {
    static Registration* last = nullptr;
    return last;
}

// Deletes `last` and those before it.
[[gnu::cold, gnu::noinline]] inline void undo(Registration*& last) {
    while (last) {
        Registration* previous = last->previous;
        delete last;
        last = previous;
    }
}

// Registers one block. `last` is the registration before it, and becomes its own.
[[gnu::cold, gnu::noinline]] inline void register_block(const Block& block, const std::string& ns, Registration*& last,
                                                        std::string& problem) {
    problem = "a registration block threw an exception without a message";
    try {
        Registration* registration = block.open(ns.c_str());
        registration->previous = last;
        last = registration;
        if (registration->problem.empty()) {
            block.fill(*registration);
        }
        problem = registration->problem;
    } catch (const std::exception& error) {
        if (*error.what()) {
            problem = error.what();
        }
    } catch (...) {  // no std::exception
    }
}

}  // namespace opforge

// The text is valid until the next call; the loader does not call it concurrently.
OPFORGE_EXPORT const char* opforge_describe() {
    static std::string lines;
    lines.clear();
    for (const opforge::Block* block = opforge::Block::first(); block; block = block->next) {
        if (block->defines) {
            block->describe(lines);
        }
    }
    std::string kernels;
    for (const opforge::Block* block = opforge::Block::first(); block; block = block->next) {
        try {
            block->check(lines, kernels);
        } catch (...) {  // it will be thrown again, and reported, when the block is registered
        }
    }
    if (!kernels.empty()) {
        lines.append("\f").append(kernels);
    }
    return lines.c_str();
}

// Registers every block, those of definitions first. The names of the library's own namespaces are followed by
// `suffix`. `roots` are lines "NAME=FOLDER". Returns null, or the reason why nothing was registered.
//
// Without a suffix (null) only the kernels for ops of others are registered again; without roots too, they are removed.
// A second call with the same suffix does so too: a signal may have ended the load right behind the first one.
OPFORGE_EXPORT const char* opforge_register(const char* suffix, const char* roots) {
    static std::string problem, registered;  // the latter is a line with the suffix of its own ops
    opforge::Registration* own = nullptr;    // never deleted if all goes well: deleting one would remove its ops
    problem.clear();
    opforge::undo(opforge::for_others());
    if (!roots) {
        return nullptr;
    }
    opforge::roots() = roots;
    const std::string line = suffix ? std::string(suffix) + "\n" : "";
    suffix = line == registered ? nullptr : suffix;
    for (const bool definitions : {true, false}) {
        for (const opforge::Block* block = opforge::Block::first(); block; block = block->next) {
            if (block->defines == definitions && problem.empty()) {
                if (block->is_for_others()) {
                    opforge::register_block(*block, block->ns, opforge::for_others(), problem);
                } else if (suffix) {
                    opforge::register_block(*block, std::string(block->ns) + suffix, own, problem);
                }
            }
        }
    }
    if (problem.empty()) {
        registered = suffix ? line : registered;
        return nullptr;
    }
    opforge::undo(opforge::for_others());
    opforge::undo(own);
    return problem.c_str();
}

#undef OPFORGE_EXPORT
