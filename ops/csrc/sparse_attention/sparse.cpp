#include <opforge/stable_blocks.h>

#include "../attention/call.h"
#include "../attention/segments.h"

namespace opforge::attention {
namespace {

int32_t* read_layout(AtenTensorHandle tensor, const char* name, bool written, Operand& in) {
    in = read_operand(tensor, name, written);
    int32_t dtype;
    check_shim(aoti_torch_get_dtype(tensor, &dtype), "the dtype");
    if (dtype != aoti_torch_dtype_int32() || !in.contiguous || in.dim != 3) {
        refuse({name, " has shape ", tuple_text(in.sizes, in.dim),
                ", expected contiguous int32 of [heads, rows, columns]: convert it with .to(torch.int32)"});
    }
    return static_cast<int32_t*>(in.data);
}

// squares, counts, layout, numbers, width: moves the blocks of squares from the layout to `squares`, [heads][4 * blocks
// of a head], and their number to `counts`.
void segment(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 4; ++i) arguments.tensor();
    const auto tensors = arguments.handles();
    const int64_t width = arguments.integer();
    Operand layout, numbers;
    int32_t* const blocks = read_layout(tensors[2], "layout", true, layout);
    const int32_t* const indexes = read_layout(tensors[3], "numbers", false, numbers);
    const int64_t heads = layout.sizes[0], rows = layout.sizes[1], columns = layout.sizes[2];
    if (numbers.numel != layout.numel) {
        refuse({"numbers has ", numbers.numel, " elements, expected those of layout, ", layout.numel});
    }
    Operand squares, counts;
    int32_t* const out = read_layout(tensors[0], "squares", true, squares);
    int32_t* const sums = read_layout(tensors[1], "counts", true, counts);
    if (width < 1) refuse({"width is ", width, ", expected 1 or more"});
    if (squares.numel < 4 * layout.numel || counts.numel != heads) {
        refuse({"squares and counts have ", squares.numel, " and ", counts.numel, " elements, expected ",
                4 * layout.numel, " and ", heads});
    }
    for (int64_t head = 0; head < heads; ++head) {
        std::vector<int32_t> of_head;
        const int64_t first = head * rows * columns;
        take_squares(blocks + first, indexes + first, rows, columns, static_cast<int32_t>(head), width, of_head);
        std::copy(of_head.begin(), of_head.end(), out + 4 * first);
        sums[head] = static_cast<int32_t>(of_head.size() / 4);
    }
}

void segment_meta(StableIValue* stack, uint64_t, uint64_t) {
    Arguments arguments(stack);
    for (int i = 0; i < 4; ++i) arguments.tensor();
    check_all_meta(arguments.handles());
}

}  // namespace
}  // namespace opforge::attention

STABLE_TORCH_LIBRARY_FRAGMENT(opforge, m) {
    m.def(
        "sparse_attention_(Tensor(a!) out, Tensor(b!) log_sums, Tensor q, Tensor k, Tensor v, Tensor[] biases, int "
        "multiplied, Tensor offsets, Tensor columns, int block, float scale, bool causal=False) -> ()");
    m.def(
        "sparse_attention_backward_(Tensor(a!) dq, Tensor(b!) dk, Tensor(c!) dv, Tensor(d!)[] bias_gradients, Tensor "
        "dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor log_sums, Tensor(e!) deltas, Tensor[] biases, int "
        "multiplied, Tensor offsets, Tensor columns, int block, float scale, bool causal=False) -> ()");
    m.def("sparse_segment_(Tensor(a!) squares, Tensor(b!) counts, Tensor(c!) layout, Tensor numbers, int width) -> ()");
}

// For every backend: tensors on another device get this op's own message.
STABLE_TORCH_LIBRARY_IMPL(opforge, CompositeExplicitAutograd, m) {
    m.impl("sparse_attention_", OPFORGE_BOXED(&opforge::attention::forward<true>));
    m.impl("sparse_attention_backward_", OPFORGE_BOXED(&opforge::attention::backward<true>));
    m.impl("sparse_segment_", OPFORGE_BOXED(&opforge::attention::segment));
}

STABLE_TORCH_LIBRARY_IMPL(opforge, Meta, m) {
    m.impl("sparse_attention_", OPFORGE_BOXED(&opforge::attention::forward_meta));
    m.impl("sparse_attention_backward_", OPFORGE_BOXED(&opforge::attention::backward_meta));
    m.impl("sparse_segment_", OPFORGE_BOXED(&opforge::attention::segment_meta));
}
