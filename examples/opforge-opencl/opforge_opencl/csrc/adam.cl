// AdamW (arXiv:1711.05101, algorithm 2). One work item for each element.
__kernel void adam(__global float* param, __global const float* grad, __global float* exp_avg,
                   __global float* exp_avg_sq, const float decay, const float step_size, const float beta1,
                   const float beta2, const float eps, const float inverse_root_correction2) {
    const size_t i = get_global_id(0);
    const float g = grad[i];
    const float m = fma(beta1, exp_avg[i], (1.0f - beta1) * g);
    const float v = fma(beta2, exp_avg_sq[i], (1.0f - beta2) * g * g);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    param[i] = param[i] * decay - step_size * m / (sqrt(v) * inverse_root_correction2 + eps);
}
