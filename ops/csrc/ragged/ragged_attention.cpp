// Attention over pages of a cache, scheduled by atoms: some queries of a sequence with all keys that they see.

#include <opforge/stable_blocks.h>

#include "../attention/attention.h"
#include "ragged.h"

namespace opforge::cpu {
namespace {

void build_atoms(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 4; ++i) arguments.tensor();
    const auto& handles = arguments.handles();
    // A batch has fewer tokens than 2^31. Sums with larger numbers could overflow.
    const int64_t queries = std::min<int64_t>(arguments.integer(), INT32_MAX);
    const int64_t block = std::min<int64_t>(arguments.integer(), INT32_MAX);
    const Dense out = numbers(handles[0], "atoms", true), lists = dense(handles[3], "kv_ptrs", false);
    check_dim(out, "atoms", 2, 2, "[most atoms, 8]");
    check_sizes(out, "atoms", {out.size(0), 8}, "[most atoms, 8]");
    if (queries < 1 || block < 1) {
        refuse({"q_block_size is ", queries, " and kv_block_size ", block, ", expected 1 or more"});
    }
    const Dense states = numbers(handles[2], "seq_metadata", false);
    check_apart({{out, "atoms"}, {lists, "kv_ptrs"}, {states, "seq_metadata"}}, 1);
    const Batch batch(handles[1], handles[2], INT32_MAX);
    if (lists.dtype != aoti_torch_dtype_int64() || lists.numel < batch.count) {
        refuse({"kv_ptrs has shape ", text(lists), ", expected an int64 address of a list for each sequence"});
    }
    int64_t count = 0;
    for (int64_t i = 0; i < batch.count; ++i) count += (batch.sequences[i].tokens + queries - 1) / queries;
    if (count > out.size(0)) {
        refuse({"atoms has ", out.size(0), " rows, expected ", count, " or more: one for each ", queries,
                " tokens of a sequence"});
    }
    Atom* atom = out.as<Atom>();
    for (int64_t i = 0; i < batch.count; ++i) {
        const SequenceState& state = batch.sequences[i];
        for (int64_t done = 0; done < state.tokens; done += queries, ++atom) {
            const auto length = static_cast<int32_t>(std::min<int64_t>(queries, state.tokens - done));
            const auto position = static_cast<int32_t>(state.seen + done);
            const auto pages = static_cast<int32_t>((position + length + block - 1) / block);
            *atom = {reinterpret_cast<const int32_t*>(lists.as<const int64_t>()[i]),
                     static_cast<int32_t>(state.start + done),
                     length,
                     pages,
                     position + length,
                     position,
                     0};
        }
    }
    stack[0] = static_cast<StableIValue>(count);
}

Pages pages_of(AtenTensorHandle handle, const char* name) {
    check_device(device_name(handle), "cpu", name, -1);
    const Operand in = operand(handle, false);
    if (!in.strided || in.dim != 4 || in.strides[3] != 1 || in.strides[2] != in.sizes[3]) {
        refuse({name, " has shape ", list_text(in.sizes, in.dim),
                ", expected [pages, tokens of a page, heads, head size], with the last two contiguous"});
    }
    Pages out;
    out.data = in.data, out.sizes = in.sizes, out.dim = in.dim, out.numel = in.numel;
    out.page = in.strides[0], out.token = in.strides[1];
    check_shim(aoti_torch_get_dtype(handle, &out.dtype), "the dtype");
    return out;
}

void flash_attn_by_atoms(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 5; ++i) arguments.tensor();
    const auto& handles = arguments.handles();
    const auto scale = static_cast<float>(arguments.real());
    const bool causal = arguments.flag();
    const SpacedRows out = spaced_rows(handles[0], "out", true), q = spaced_rows(handles[1], "q", false);
    const Pages k = pages_of(handles[2], "k"), v = pages_of(handles[3], "v");
    const Dense atoms = numbers(handles[4], "attention_atoms", false);
    check_same_sizes(out, "out", q, "q");
    check_same_sizes(v, "v", k, "k");
    const int64_t heads = k.size(2), size = k.size(3);
    if (size < 1 || heads < 1 || q.size(1) % (heads * size) != 0) {
        refuse({"q has shape ", text(q), ", expected as many heads as a multiple of the ", heads, " heads of size ",
                size, " of k"});
    }
    if (k.size(1) == 0) refuse({"k has shape ", text(k), ", expected a token or more of a page"});
    check_same_dtype(out, "out", q, "q"), check_same_dtype(k, "k", q, "q"), check_same_dtype(v, "v", q, "q");
    check_sizes(atoms, "attention_atoms", {atoms.dim ? atoms.size(0) : 0, 8}, "[atoms, 8], of build_atoms");
    const Atom* const atom = atoms.as<const Atom>();
    int64_t work = 1;
    for (int64_t i = 0; i < atoms.size(0); ++i) {
        const Atom& each = atom[i];
        const int64_t end = int64_t{each.first_query} + each.queries;
        if (each.queries < 0 || each.first_query < 0 || end > q.size(0)) {
            refuse({"atom ", i, " has queries ", each.first_query, " to ", end, ", expected some of the ", q.size(0),
                    " rows of q"});
        }
        if (each.extent < 0 || each.page_count != (each.extent + k.size(1) - 1) / k.size(1)) {
            refuse({"atom ", i, " has ", each.page_count, " pages for ", each.extent, " tokens, expected pages of ",
                    k.size(1), " tokens: build the atoms with that kv_block_size"});
        }
        if (each.page_count > 0 && !each.pages) {
            refuse({"atom ", i, " has 0 as the address of its pages, expected that of a list"});
        }
        for (int32_t page = 0; page < each.page_count; ++page) {
            if (each.pages[page] >= 0 && each.pages[page] < k.size(0)) continue;
            refuse({"atom ", i, " has page ", each.pages[page], ", expected 0 to ", k.size(0) - 1, ", the pages of k"});
        }
        work = std::max<int64_t>(work, int64_t{each.extent} * each.queries);
    }
    const PagedAttention call{atom,
                              q.kind,
                              heads,
                              q.size(1) / (heads * size),
                              size,
                              k.size(1),
                              {q.data, q.stride, 0},
                              {out.data, out.stride, 0},
                              {k.data, k.token, k.page},
                              {v.data, v.token, v.page},
                              causal,
                              scale};
    each_row(atoms.size(0) * heads, work * size,
             [&](int64_t begin, int64_t end) { attention_over_pages(call, begin, end); });
}

constexpr char kFive[] = "ttttt";

void atoms_meta(StableIValue* stack, uint64_t, uint64_t) {
    refuse({"build_atoms has tensors of the device meta, expected tensors on the CPU: it returns their number"});
}

}  // namespace
}  // namespace opforge::cpu

STABLE_TORCH_LIBRARY_FRAGMENT(opforge, m) {
    m.def(
        "build_atoms(Tensor(a!) atoms_ten, Tensor batch_metadata, Tensor seq_metadata, Tensor kv_ptrs, int "
        "q_block_size, int kv_block_size) -> int");
    m.def(
        "flash_attn_by_atoms(Tensor(a!) out, Tensor q, Tensor k, Tensor v, Tensor attention_atoms, float "
        "softmax_scale, bool is_causal) -> ()");
}

// For every backend: tensors on another device get this op's own message.
STABLE_TORCH_LIBRARY_IMPL(opforge, CompositeExplicitAutograd, m) {
    m.impl("build_atoms", OPFORGE_BOXED(&opforge::cpu::build_atoms));
    m.impl("flash_attn_by_atoms", OPFORGE_BOXED(&opforge::cpu::flash_attn_by_atoms));
}

STABLE_TORCH_LIBRARY_IMPL(opforge, Meta, m) {
    m.impl("build_atoms", OPFORGE_BOXED(&opforge::cpu::atoms_meta));
    m.impl("flash_attn_by_atoms", OPFORGE_BOXED(&opforge::cpu::meta<opforge::cpu::kFive>));
}
