// What works on rows of features: dropout, residual and LayerNorm in one pass; bias and GELU; sums of columns.
// N rows of D features. Sums over rows are made per thread and added in the threads' order: for a given number of
// threads the result is always the same.
#include <cmath>
#include <vector>

#include <omp.h>

#include "arithmetic.h"

namespace {

// One block of sums per thread: no atomics, and an order of addition that does not depend on which thread is first.
struct Partial {
    Partial(int threads, long width) : width(width), values(size_t(threads) * width, 0.0f) {}
    float* mine() { return values.data() + size_t(omp_get_thread_num()) * width; }
    void add_to(float* out, long first, long count) const {
        for (size_t start = 0; start < values.size(); start += width)
            for (long d = 0; d < count; ++d) out[d] += values[start + first + d];
    }
    long width;
    std::vector<float> values;
};

// out = LayerNorm(x + dropout(y + bias)); x, y and out (N, D). Kept for the backward pass: sum (N, D), which LayerNorm
// takes in, and mean and reciprocal deviation of its rows (N,).
template <class T, class Drop>
void drop_add_norm(const T* y, const float* bias, const T* x, const float* gamma, const float* beta,
                   const int32_t* keys, Drop drop, float eps, T* sum, T* out, float* mean, float* deviation, long N,
                   long D, int threads) {
    PARALLEL_FOR(threads)
    for (long n = 0; n < N; ++n) {
        const uint32_t key = keys ? uint32_t(keys[n]) : 0;
        const Drop mine = drop;  // a copy that no store can reach
        const T *__restrict yn = y + n * D, *__restrict xn = x + n * D;
        T *__restrict zn = sum + n * D, *__restrict on = out + n * D;
        float total = 0.0f;
#pragma omp simd reduction(+ : total)
        for (long d = 0; d < D; ++d) {
            // Read back after rounding to T: the statistics are those of what the backward pass will read.
            put(zn[d], (get(yn[d]) + bias[d]) * mine.factor(key, uint32_t(d)) + get(xn[d]));
            total += get(zn[d]);
        }
        const float m = total / float(D);
        // A second pass over the row, which is in cache: the mean of squares less the square of the mean would cancel.
        float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
        for (long d = 0; d < D; ++d) {
            float c = get(zn[d]) - m;
            squares += c * c;
        }
        const float r = 1.0f / std::sqrt(squares / float(D) + eps);
        mean[n] = m;
        deviation[n] = r;
        SIMD for (long d = 0; d < D; ++d) put(on[d], (get(zn[d]) - m) * r * gamma[d] + beta[d]);
    }
}

// sum, mean and deviation (its reciprocal) as the forward pass left them.
template <class T, class Drop>
void drop_add_norm_gradient(const T* grad, const T* sum, const float* mean, const float* deviation,
                            const float* gamma, const int32_t* keys, Drop drop, T* grad_y, T* grad_x,
                            float* grad_bias, float* grad_gamma, float* grad_beta, long N, long D, int threads) {
    Partial partial(threads, 3 * D);
    PARALLEL_FOR(threads)
    for (long n = 0; n < N; ++n) {
        const uint32_t key = keys ? uint32_t(keys[n]) : 0;
        const Drop mine = drop;  // a copy that no store can reach
        float *__restrict to_bias = partial.mine(), *__restrict to_gamma = to_bias + D, *__restrict to_beta = to_gamma + D;
        const T *__restrict gn = grad + n * D, *__restrict zn = sum + n * D;
        T *__restrict yn = grad_y + n * D, *__restrict xn = grad_x + n * D;
        const float m = mean[n], r = deviation[n];
        float a = 0.0f, b = 0.0f;
#pragma omp simd reduction(+ : a, b)
        for (long d = 0; d < D; ++d) {
            float g = get(gn[d]) * gamma[d];
            a += g;
            b += g * (get(zn[d]) - m);
        }
        // dz = r (g gamma - mean(g gamma) - c r^2 mean(g gamma c)), c = z - mean; a and b are the two means.
        a /= float(D);
        b *= r * r / float(D);
        SIMD for (long d = 0; d < D; ++d) {
            float g = get(gn[d]), centred = get(zn[d]) - m;
            float dz = r * (g * gamma[d] - a - centred * b);
            float dy = dz * mine.factor(key, uint32_t(d));
            put(xn[d], dz);
            put(yn[d], dy);
            to_bias[d] += dy;
            to_gamma[d] += g * centred * r;
            to_beta[d] += g;
        }
    }
    partial.add_to(grad_bias, 0, D);
    partial.add_to(grad_gamma, D, D);
    partial.add_to(grad_beta, 2 * D, D);
}

// Dropout alone; its own gradient, with the same keys.
template <class T>
void drop(const T* x, const int32_t* keys, Dropout dropout, T* out, long N, long D, int threads) {
    PARALLEL_FOR(threads)
    for (long n = 0; n < N; ++n) {
        const uint32_t key = uint32_t(keys[n]);
        const T* __restrict from = x + n * D;
        T* __restrict to = out + n * D;
        SIMD for (long d = 0; d < D; ++d) put(to[d], get(from[d]) * dropout.factor(key, uint32_t(d)));
    }
}

struct Gelu {
    float value, slope;
};

// x * Phi(x); erf by Abramowitz and Stegun 7.1.26, whose error is below 1.5e-7.
inline Gelu exact_gelu(float x) {
    float z = std::fabs(x) * 0.70710678f, e = exp_of(-z * z);
    float t = 1.0f / (1.0f + 0.3275911f * z);
    float tail = 0.5f * e * t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    float phi = x < 0.0f ? tail : 1.0f - tail;
    return {x * phi, phi + x * 0.39894228f * e};
}

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), Hendrycks and Gimpel 2016.
inline Gelu tanh_gelu(float x) {
    float u = 0.79788456f * (x + 0.044715f * x * x * x);
    float phi = 1.0f - 1.0f / (1.0f + exp_of(2.0f * u));  // (1 + tanh u) / 2
    return {x * phi, phi + x * 2.0f * phi * (1.0f - phi) * 0.79788456f * (1.0f + 0.134145f * x * x)};
}

template <class T, Gelu gelu(float)>
void bias_gelu(const T* y, const float* bias, T* out, long N, long D, int threads) {
    PARALLEL_FOR(threads)
    for (long n = 0; n < N; ++n) {
        const T* __restrict from = y + n * D;
        T* __restrict to = out + n * D;
        SIMD for (long d = 0; d < D; ++d) put(to[d], gelu(get(from[d]) + bias[d]).value);
    }
}

template <class T, Gelu gelu(float)>
void bias_gelu_gradient(const T* grad, const T* y, const float* bias, T* grad_y, float* grad_bias, long N, long D,
                        int threads) {
    Partial partial(threads, D);
    PARALLEL_FOR(threads)
    for (long n = 0; n < N; ++n) {
        float* __restrict to_bias = partial.mine();
        const T *__restrict gn = grad + n * D, *__restrict from = y + n * D;
        T* __restrict to = grad_y + n * D;
        SIMD for (long d = 0; d < D; ++d) {
            float g = get(gn[d]) * gelu(get(from[d]) + bias[d]).slope;
            put(to[d], g);
            to_bias[d] += g;
        }
    }
    partial.add_to(grad_bias, 0, D);
}

// out[d] += sum over n of x[n][d], in fp32: the gradient of a bias.
template <class T>
void column_sums(const T* x, float* out, long N, long D, int threads) {
    Partial partial(threads, D);
    PARALLEL_FOR(threads)
    for (long n = 0; n < N; ++n) {
        float* __restrict mine = partial.mine();
        SIMD for (long d = 0; d < D; ++d) mine[d] += get(x[n * D + d]);
    }
    partial.add_to(out, 0, D);
}

// Cross-entropy of M rows of logits over V entries, of which the first W exist. losses: in nats. best: the first of
// the largest. logits: overwritten by softmax minus one-hot, zeros beyond W, where gradients are asked for.
template <class T>
void cross_entropy(T* logits, const int64_t* labels, float* losses, int64_t* best, long M, long V, long W,
                   bool with_gradient, int threads) {
    PARALLEL_FOR(threads)
    for (long m = 0; m < M; ++m) {
        T* __restrict row = logits + m * V;
        float largest = get(row[0]);
#pragma omp simd reduction(max : largest)
        for (long v = 0; v < W; ++v) largest = get(row[v]) > largest ? get(row[v]) : largest;
        float total = 0.0f;
#pragma omp simd reduction(+ : total)
        for (long v = 0; v < W; ++v) total += exp_of(get(row[v]) - largest);
        // The lowest index of the largest logit, as a reduction that vectorises.
        int32_t first = int32_t(W) - 1;
#pragma omp simd reduction(min : first)
        for (int32_t v = 0; v < int32_t(W); ++v) first = get(row[v]) == largest && v < first ? v : first;
        const float label = get(row[labels[m]]);
        losses[m] = std::log(total) + largest - label;
        best[m] = first;
        // In place: logits are among the largest tensors of a step, and their gradient takes no memory of its own.
        if (!with_gradient) continue;
        const float scale = 1.0f / total;
        SIMD for (long v = 0; v < W; ++v) put(row[v], exp_of(get(row[v]) - largest) * scale);
        for (long v = W; v < V; ++v) put(row[v], 0.0f);
        // In fp32 before it is rounded: softmax rounded to bf16, less 1, would lose the gradient of a sure prediction.
        put(row[labels[m]], std::exp(label - largest) * scale - 1.0f);
    }
}

}  // namespace

#define FOR_TYPE(T, suffix)                                                                                          \
    EXPORT void drop_add_norm_##suffix(const T* y, const float* bias, const T* x, const float* gamma,                \
                                       const float* beta, const int32_t* keys, int32_t threshold, float scale,       \
                                       float eps, T* sum, T* out, float* mean, float* deviation, long N, long D,     \
                                       int threads) {                                                                \
        with_dropout(keys, threshold, scale, [&](auto drop) {                                                        \
            drop_add_norm(y, bias, x, gamma, beta, keys, drop, eps, sum, out, mean, deviation, N, D, threads);       \
        });                                                                                                          \
    }                                                                                                                \
    EXPORT void drop_add_norm_gradient_##suffix(                                                                     \
        const T* grad, const T* sum, const float* mean, const float* deviation, const float* gamma,                  \
        const int32_t* keys, int32_t threshold, float scale, T* grad_y, T* grad_x, float* grad_bias,                 \
        float* grad_gamma, float* grad_beta, long N, long D, int threads) {                                          \
        with_dropout(keys, threshold, scale, [&](auto drop) {                                                        \
            drop_add_norm_gradient(grad, sum, mean, deviation, gamma, keys, drop, grad_y, grad_x, grad_bias,         \
                                   grad_gamma, grad_beta, N, D, threads);                                            \
        });                                                                                                          \
    }                                                                                                                \
    EXPORT void drop_##suffix(const T* x, const int32_t* keys, int32_t threshold, float scale, T* out, long N,       \
                              long D, int threads) {                                                                 \
        drop(x, keys, Dropout{threshold, scale}, out, N, D, threads);                                                      \
    }                                                                                                                \
    EXPORT void bias_gelu_##suffix(const T* y, const float* bias, T* out, long N, long D, int by_tanh,               \
                                   int threads) {                                                                    \
        (by_tanh ? bias_gelu<T, tanh_gelu> : bias_gelu<T, exact_gelu>)(y, bias, out, N, D, threads);                 \
    }                                                                                                                \
    EXPORT void bias_gelu_gradient_##suffix(const T* grad, const T* y, const float* bias, T* grad_y,                 \
                                            float* grad_bias, long N, long D, int by_tanh, int threads) {            \
        (by_tanh ? bias_gelu_gradient<T, tanh_gelu> : bias_gelu_gradient<T, exact_gelu>)(grad, y, bias, grad_y,      \
                                                                                         grad_bias, N, D, threads);  \
    }                                                                                                                \
    EXPORT void column_sums_##suffix(const T* x, float* out, long N, long D, int threads) {                          \
        column_sums(x, out, N, D, threads);                                                                          \
    }                                                                                                                \
    EXPORT void cross_entropy_##suffix(T* logits, const int64_t* labels, float* losses, int64_t* best, long M,       \
                                       long V, long W, int with_gradient, int threads) {                             \
        cross_entropy(logits, labels, losses, best, M, V, W, with_gradient != 0, threads);                           \
    }

FOR_TYPE(float, f32)
FOR_TYPE(bf16, bf16)
