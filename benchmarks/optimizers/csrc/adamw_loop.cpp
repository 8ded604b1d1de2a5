// The ceiling of the AdamW benchmarks: the rule as a plain loop, without torch, checks or dispatch.
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

struct Rule {
    float decay, beta1, beta2, rate, eps;
};

void loop(float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict v, int64_t count,
          const Rule& rule) {
    const Rule r = rule;
    for (int64_t i = 0; i < count; ++i) {
        m[i] = r.beta1 * m[i] + (1.0f - r.beta1) * g[i];
        v[i] = r.beta2 * v[i] + (1.0f - r.beta2) * g[i] * g[i];
        p[i] = r.decay * p[i] - r.rate * m[i] / (std::sqrt(v[i]) + r.eps);
    }
}

}  // namespace

// Elements are counted over all tensors, and each thread processes an equal share.
extern "C" __attribute__((visibility("default"))) void bench_adamw_loop(int64_t tensors, float** p, float** g,
                                                                        float** m, float** v, const int64_t* sizes,
                                                                        double lr, double beta1, double beta2,
                                                                        double eps, double weight_decay, int64_t step,
                                                                        int threads) {
    const double first = 1.0 - std::pow(beta1, static_cast<double>(step));
    const double second = std::sqrt(1.0 - std::pow(beta2, static_cast<double>(step)));
    const Rule rule{static_cast<float>(1.0 - lr * weight_decay), static_cast<float>(beta1), static_cast<float>(beta2),
                    static_cast<float>(lr / first * second), static_cast<float>(eps * second)};
    int64_t all = 0;
    for (int64_t i = 0; i < tensors; ++i) all += sizes[i];
    auto share = [&](int number) {
        int64_t skip = all * number / threads, left = all * (number + 1) / threads - skip;
        for (int64_t i = 0; i < tensors && left > 0; ++i) {
            if (skip >= sizes[i]) {
                skip -= sizes[i];
                continue;
            }
            const int64_t count = sizes[i] - skip < left ? sizes[i] - skip : left;
            loop(p[i] + skip, g[i] + skip, m[i] + skip, v[i] + skip, count, rule);
            left -= count;
            skip = 0;
        }
    };
    std::vector<std::thread> others;
    for (int number = 1; number < threads; ++number) others.emplace_back(share, number);
    share(0);
    for (std::thread& other : others) other.join();
}
