// Attention over pages of a cache, scheduled by atoms: some queries of a sequence with all keys that they see.

#include <torch/csrc/stable/library.h>

#include <cmath>
#include <vector>

#include "ragged.h"

namespace opforge::cpu {
namespace {

// A row of the atoms' tensor, int32 [atoms, 8], as DeepSpeed lays it out.
struct Atom {
    const int32_t* pages;
    int32_t first_query, queries, page_count, extent, position, unused;
};
static_assert(sizeof(Atom) == 32, "an atom is a row of eight int32");

void build_atoms(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 4; ++i) arguments.tensor();
    const auto& handles = arguments.handles();
    const int64_t queries = arguments.integer(), block = arguments.integer();
    const Dense out = numbers(handles[0], "atoms", true), lists = dense(handles[3], "kv_ptrs", false);
    check_dim(out, "atoms", 2, 2, "[most atoms, 8]");
    check_sizes(out, "atoms", {out.size(0), 8}, "[most atoms, 8]");
    if (queries < 1 || block < 1) {
        refuse("q_block_size is " + std::to_string(queries) + " and kv_block_size " + std::to_string(block) +
               ", expected 1 or more");
    }
    const Batch batch(handles[1], handles[2], INT32_MAX);
    if (lists.dtype != aoti_torch_dtype_int64() || lists.numel < batch.count) {
        refuse("kv_ptrs has shape " + text(lists) + ", expected an int64 address of a list for each sequence");
    }
    int64_t count = 0;
    for (int64_t i = 0; i < batch.count; ++i) count += (batch.sequences[i].tokens + queries - 1) / queries;
    if (count > out.size(0)) {
        refuse("atoms has " + std::to_string(out.size(0)) + " rows, expected " + std::to_string(count) +
               " or more: one for each " + std::to_string(queries) + " tokens of a sequence");
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
    stack[0] = torch::stable::detail::from(count);
}

Pages pages_of(AtenTensorHandle handle, const char* name) {
    check_device(device_name(handle), "cpu", name, -1);
    const Operand in = operand(handle, false);
    if (!in.strided || in.dim != 4 || in.strides[3] != 1 || in.strides[2] != in.sizes[3]) {
        refuse(std::string(name) + " has shape " + text(in.sizes, in.dim) +
               ", expected [pages, tokens of a page, heads, head size], with the last two contiguous");
    }
    Pages out;
    out.data = in.data, out.sizes = in.sizes, out.dim = in.dim, out.numel = in.numel;
    out.page = in.strides[0], out.token = in.strides[1];
    check_shim(aoti_torch_get_dtype(handle, &out.dtype), "the dtype");
    return out;
}

float dot(const float* a, const float* b, int64_t count) {
    Vec sum(0.0f);
    for (int64_t i = 0; i < count; i += Vec::kWidth) sum = fma(load(a + i), load(b + i), sum);
    return sum_of(sum);
}

// The queries of one atom in a group of heads that share a head of keys. Each page is read once, and converted to
// floats; the sums of a row are those of a softmax over the keys so far.
template <typename T>
class Tile {
public:
    Tile(const Pages& k, const Pages& v, int64_t group, float scale, bool causal)
        : k_(k), v_(v), group_(group), scale_(scale), causal_(causal), size_(k.size(3)) {
        padded_ = (size_ + Vec::kWidth - 1) / Vec::kWidth * Vec::kWidth;
    }

    void run(const Atom& atom, const Rows& q, const Rows& out, int64_t head) {
        const int64_t rows = atom.queries * group_, block = k_.size(1);
        queries_.assign(rows * padded_, 0.0f), sums_.assign(rows * padded_, 0.0f);
        highest_.assign(rows, -INFINITY), weights_.assign(rows, 0.0f);
        keys_.assign(block * padded_, 0.0f), values_.assign(block * padded_, 0.0f), scores_.resize(block);
        const auto place = [&](const Rows& x, int64_t row) {
            return x.template row<T>(atom.first_query + row / group_) + (head * group_ + row % group_) * size_;
        };
        for (int64_t row = 0; row < rows; ++row) {
            for (int64_t i = 0; i < size_; ++i) queries_[row * padded_ + i] = to_float(place(q, row)[i]) * scale_;
        }
        for (int64_t page = 0; page < atom.page_count; ++page) {
            const int64_t first = page * block, count = std::min<int64_t>(block, atom.extent - first);
            for (int64_t j = 0; j < count; ++j) {
                to_floats(k_.template at<const T>(atom.pages[page], j, head), size_, &keys_[j * padded_]);
                to_floats(v_.template at<const T>(atom.pages[page], j, head), size_, &values_[j * padded_]);
            }
            for (int64_t row = 0; row < rows; ++row) {
                const int64_t seen = causal_ ? atom.position + row / group_ + 1 - first : count;
                add(row, std::min(count, seen));
            }
        }
        for (int64_t row = 0; row < rows; ++row) {
            const float weight = weights_[row] > 0.0f ? 1.0f / weights_[row] : 0.0f;
            for (int64_t i = 0; i < size_; ++i) from_float(sums_[row * padded_ + i] * weight, place(out, row)[i]);
        }
    }

private:
    void add(int64_t row, int64_t count) {
        if (count <= 0) return;
        float highest = highest_[row];
        for (int64_t j = 0; j < count; ++j) {
            scores_[j] = dot(&queries_[row * padded_], &keys_[j * padded_], padded_);
            highest = std::max(highest, scores_[j]);
        }
        const float before = exp_of(highest_[row] - highest);
        for (int64_t j = 0; j < count; ++j) scores_[j] = exp_of(scores_[j] - highest);
        float weight = weights_[row] * before;
        for (int64_t j = 0; j < count; ++j) weight += scores_[j];
        highest_[row] = highest, weights_[row] = weight;
        for (int64_t i = 0; i < padded_; i += Vec::kWidth) {
            Vec sum = load(&sums_[row * padded_ + i]) * Vec(before);
            for (int64_t j = 0; j < count; ++j) sum = fma(Vec(scores_[j]), load(&values_[j * padded_ + i]), sum);
            store(&sums_[row * padded_ + i], sum);
        }
    }

    const Pages &k_, &v_;
    int64_t group_;
    float scale_;
    bool causal_;
    int64_t size_, padded_;
    std::vector<float> queries_, sums_, highest_, weights_, keys_, values_, scores_;
};

void flash_attn_by_atoms(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 5; ++i) arguments.tensor();
    const auto& handles = arguments.handles();
    const auto scale = static_cast<float>(arguments.real());
    const bool causal = arguments.flag();
    const Rows out = spaced_rows(handles[0], "out", true), q = spaced_rows(handles[1], "q", false);
    const Pages k = pages_of(handles[2], "k"), v = pages_of(handles[3], "v");
    const Dense atoms = numbers(handles[4], "attention_atoms", false);
    check_same_sizes(out, "out", q, "q");
    check_same_sizes(v, "v", k, "k");
    const int64_t heads = k.size(2), size = k.size(3);
    if (size < 1 || heads < 1 || q.size(1) % (heads * size) != 0) {
        refuse("q has shape " + text(q) + ", expected as many heads as a multiple of the " + std::to_string(heads) +
               " heads of size " + std::to_string(size) + " of k");
    }
    check_same_dtype(out, "out", q, "q"), check_same_dtype(k, "k", q, "q"), check_same_dtype(v, "v", q, "q");
    check_sizes(atoms, "attention_atoms", {atoms.dim ? atoms.size(0) : 0, 8}, "[atoms, 8], of build_atoms");
    const Atom* const atom = atoms.as<const Atom>();
    int64_t work = 1;
    for (int64_t i = 0; i < atoms.size(0); ++i) {
        const Atom& each = atom[i];
        if (each.queries < 0 || each.first_query < 0 || each.first_query + each.queries > q.size(0)) {
            refuse("atom " + std::to_string(i) + " has queries " + std::to_string(each.first_query) + " to " +
                   std::to_string(each.first_query + each.queries) + ", expected some of the " +
                   std::to_string(q.size(0)) + " rows of q");
        }
        if (each.extent < 0 || each.page_count != (each.extent + k.size(1) - 1) / k.size(1)) {
            refuse("atom " + std::to_string(i) + " has " + std::to_string(each.page_count) + " pages for " +
                   std::to_string(each.extent) + " tokens, expected pages of " + std::to_string(k.size(1)) +
                   " tokens: build the atoms with that kv_block_size");
        }
        for (int32_t page = 0; page < each.page_count; ++page) {
            if (each.pages[page] >= 0 && each.pages[page] < k.size(0)) continue;
            refuse("atom " + std::to_string(i) + " has page " + std::to_string(each.pages[page]) + ", expected 0 to " +
                   std::to_string(k.size(0) - 1) + ", the pages of k");
        }
        work = std::max<int64_t>(work, int64_t{each.extent} * each.queries);
    }
    with_dtype(q.kind, [&](auto type) {
        using T = typename decltype(type)::type;
        each_row(atoms.size(0) * heads, work * size, [&](int64_t begin, int64_t end) {
            Tile<T> tile(k, v, q.size(1) / (heads * size), scale, causal);
            for (int64_t i = begin; i < end; ++i) tile.run(atom[i / heads], q, out, i % heads);
        });
    });
}

constexpr char kFive[] = "ttttt";

void atoms_meta(StableIValue* stack, uint64_t, uint64_t) {
    refuse("build_atoms has tensors of the device meta, expected tensors on the CPU: it returns their number");
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
