// What happens to gradients in flat fp32 buffers: sums over micro-batches, and the optimizer's update in two passes over
// memory; `bert_trainer/optim/update.py` says where it is from.
#include <algorithm>
#include <cmath>
#include <vector>

#include "arithmetic.h"

// R rows of C elements. Moments take the gradients in, times factor; the gradients become the update
//     first * to_first / (sqrt(second) * to_second + epsilon) + decay * values,
// without the last term from row `decayed` on. norms: (decayed, 2), of values and update by row.
EXPORT void gradients_to_update_f32(float* gradients, float* first, float* second, const float* values, float factor,
                                    float one_less_beta1, float beta2, float one_less_beta2, float to_first,
                                    float to_second, float epsilon, float decay, float* norms, long decayed, long R,
                                    long C, int threads) {
    PARALLEL_FOR(threads)
    for (long r = 0; r < R; ++r) {
        float *__restrict g = gradients + r * C, *__restrict m = first + r * C, *__restrict v = second + r * C;
        const float* __restrict w = values + r * C;
        if (r >= decayed) {
            SIMD for (long c = 0; c < C; ++c) {
                const float scaled = g[c] * factor;
                m[c] += (scaled - m[c]) * one_less_beta1;
                v[c] = v[c] * beta2 + scaled * scaled * one_less_beta2;
                g[c] = m[c] * to_first / (std::sqrt(v[c]) * to_second + epsilon);
            }
            continue;
        }
        // Norms of a row of C = 4096 elements are short enough for fp32; they are combined over rows in fp64.
        float of_values = 0.0f, of_update = 0.0f;
#pragma omp simd reduction(+ : of_values, of_update)
        for (long c = 0; c < C; ++c) {
            const float scaled = g[c] * factor;
            m[c] += (scaled - m[c]) * one_less_beta1;
            v[c] = v[c] * beta2 + scaled * scaled * one_less_beta2;
            const float u = m[c] * to_first / (std::sqrt(v[c]) * to_second + epsilon) + decay * w[c];
            g[c] = u;
            of_values += w[c] * w[c];
            of_update += u * u;
        }
        norms[2 * r] = std::sqrt(of_values);
        norms[2 * r + 1] = std::sqrt(of_update);
    }
}

// sums += x, for a number of elements: a bf16 gradient into its fp32 main_grad, in one pass over both.
EXPORT void add_to_bf16(float* __restrict sums, const bf16* __restrict x, long count, int threads) {
    constexpr long BLOCK = 4096;
    PARALLEL_FOR(threads)
    for (long start = 0; start < count; start += BLOCK) {
        const long stop = start + BLOCK < count ? start + BLOCK : count;
        SIMD for (long i = start; i < stop; ++i) sums[i] += get(x[i]);
    }
}

// sums[targets[u]] += the rows of x (., D) that belong to a target, added up in their order. order: places of rows, those
// of one target beside each other; starts: (U + 1,), where each target's begin in it.
EXPORT void add_rows_f32(float* sums, const float* x, const int64_t* order, const int64_t* starts,
                         const int64_t* targets, long U, long D, int threads) {
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> total(D);
        // Of real text a few tokens have most of the rows.
#pragma omp for schedule(dynamic, 8)
        for (long u = 0; u < U; ++u) {
            float *__restrict of_target = total.data(), *__restrict to = sums + targets[u] * D;
            std::fill(total.begin(), total.end(), 0.0f);
            for (long i = starts[u]; i < starts[u + 1]; ++i) {
                const float* __restrict row = x + order[i] * D;
                SIMD for (long d = 0; d < D; ++d) of_target[d] += row[d];
            }
            SIMD for (long d = 0; d < D; ++d) to[d] += of_target[d];
        }
    }
}

// values -= rate * ratios[row] * update; ratios: of the first `decayed` rows, the others have 1.
EXPORT void apply_update_f32(float* values, const float* update, const float* ratios, float rate, long decayed, long R,
                             long C, int threads) {
    PARALLEL_FOR(threads)
    for (long r = 0; r < R; ++r) {
        const float scale = r < decayed ? rate * ratios[r] : rate;
        float* __restrict w = values + r * C;
        const float* __restrict u = update + r * C;
        SIMD for (long c = 0; c < C; ++c) w[c] -= scale * u[c];
    }
}
