#include <opforge/stable_blocks.h>

#include "../attention/call.h"

STABLE_TORCH_LIBRARY_FRAGMENT(opforge, m) {
    m.def(
        "evoformer_attention_(Tensor(a!) out, Tensor(b!) log_sums, Tensor q, Tensor k, Tensor v, Tensor[] biases, int "
        "multiplied, float scale, bool causal=False) -> ()");
    m.def(
        "evoformer_attention_backward_(Tensor(a!) dq, Tensor(b!) dk, Tensor(c!) dv, Tensor(d!)[] bias_gradients, "
        "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor log_sums, Tensor(e!) deltas, Tensor[] biases, "
        "int multiplied, float scale, bool causal=False) -> ()");
}

// For every backend: tensors on another device get this op's own message.
STABLE_TORCH_LIBRARY_IMPL(opforge, CompositeExplicitAutograd, m) {
    m.impl("evoformer_attention_", OPFORGE_BOXED(&opforge::attention::forward<false>));
    m.impl("evoformer_attention_backward_", OPFORGE_BOXED(&opforge::attention::backward<false>));
}

STABLE_TORCH_LIBRARY_IMPL(opforge, Meta, m) {
    m.impl("evoformer_attention_", OPFORGE_BOXED(&opforge::attention::forward_meta));
    m.impl("evoformer_attention_backward_", OPFORGE_BOXED(&opforge::attention::backward_meta));
}
