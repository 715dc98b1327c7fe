// What works on rows of features: dropout, residual and LayerNorm in one pass; GELU, with a bias or a gate; rotary
// positions; sums of columns.
// N rows of D features. Sums over rows are made per thread and added in the threads' order: for a given number of
// threads the result is always the same.
#include <cmath>
#include <type_traits>
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

// In the place of a bias that is not there, or of a gradient: what the loops would ask about an address, they would ask
// for every element.
struct Nothing {
    inline float operator[](long) const { return 0.0f; }
};

// out = LayerNorm(z) of a row of D features, whose sum is given. Its mean and the reciprocal of its deviation.
template <class T, class Bias>
inline void normalize(const T* __restrict z, float total, const float* gamma, Bias beta, float eps, T* __restrict out,
                      float& mean, float& deviation, long D) {
    const float m = total / float(D);
    // A second pass over the row, which is in cache: the mean of squares less the square of the mean would cancel.
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (long d = 0; d < D; ++d) {
        float c = get(z[d]) - m;
        squares += c * c;
    }
    const float r = 1.0f / std::sqrt(squares / float(D) + eps);
    mean = m;
    deviation = r;
    SIMD for (long d = 0; d < D; ++d) put(out[d], (get(z[d]) - m) * r * gamma[d] + beta[d]);
}

// out = LayerNorm(x + dropout(y + bias)); x, y and out (N, D). Kept for the backward pass: sum (N, D), which LayerNorm
// takes in, and mean and reciprocal deviation of its rows (N,).
template <class T, class Drop, class Bias>
void drop_add_norm(const T* y, Bias bias, const T* x, const float* gamma, Bias beta, const int32_t* keys, Drop drop,
                   float eps, T* sum, T* out, float* mean, float* deviation, long N, long D, int threads) {
    PARALLEL_FOR(threads)
    for (long n = 0; n < N; ++n) {
        const uint32_t key = keys ? uint32_t(keys[n]) : 0;
        const Drop mine = drop;  // a copy that no store can reach
        const T *__restrict yn = y + n * D, *__restrict xn = x + n * D;
        T* __restrict zn = sum + n * D;
        float total = 0.0f;
#pragma omp simd reduction(+ : total)
        for (long d = 0; d < D; ++d) {
            // Read back after rounding to T: the statistics are those of what the backward pass will read.
            put(zn[d], (get(yn[d]) + bias[d]) * mine.factor(key, uint32_t(d)) + get(xn[d]));
            total += get(zn[d]);
        }
        normalize(zn, total, gamma, beta, eps, out + n * D, mean[n], deviation[n], D);
    }
}

template <class T>
void norm(const T* x, const float* gamma, float eps, T* out, float* mean, float* deviation, long N, long D, int threads) {
    PARALLEL_FOR(threads)
    for (long n = 0; n < N; ++n) {
        const T* __restrict xn = x + n * D;
        float total = 0.0f;
#pragma omp simd reduction(+ : total)
        for (long d = 0; d < D; ++d) total += get(xn[d]);
        normalize(xn, total, gamma, Nothing{}, eps, out + n * D, mean[n], deviation[n], D);
    }
}

// sum, mean and deviation (its reciprocal) as the forward pass left them. biased: there are gradients of bias and beta.
// grad_sum: of the sum, where it is a result too. Where nothing is dropped and nothing biased, grad_y is that of x, and
// is not written.
template <bool biased, class T, class Drop, class Sum>
void drop_add_norm_gradient(const T* grad, Sum grad_sum, const T* sum, const float* mean, const float* deviation,
                            const float* gamma, const int32_t* keys, Drop drop, T* grad_y, T* grad_x,
                            float* grad_bias, float* grad_gamma, float* grad_beta, long N, long D, int threads) {
    constexpr bool drops = !std::is_same_v<Drop, NoDropout>, adds = !std::is_same_v<Sum, Nothing>;
    Partial partial(threads, biased ? 3 * D : D);
    PARALLEL_FOR(threads)
    for (long n = 0; n < N; ++n) {
        const uint32_t key = keys ? uint32_t(keys[n]) : 0;
        const Drop mine = drop;  // a copy that no store can reach
        float *__restrict to_gamma = partial.mine(), *__restrict to_bias = to_gamma + D, *__restrict to_beta = to_bias + D;
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
            if constexpr (adds) dz += get(grad_sum[n * D + d]);
            float dy = dz * mine.factor(key, uint32_t(d));
            put(xn[d], dz);
            if constexpr (biased || drops) put(yn[d], dy);
            to_gamma[d] += g * centred * r;
            if constexpr (biased) {
                to_bias[d] += dy;
                to_beta[d] += g;
            }
        }
    }
    partial.add_to(grad_gamma, 0, D);
    if constexpr (biased) {
        partial.add_to(grad_bias, D, D);
        partial.add_to(grad_beta, 2 * D, D);
    }
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

// out (N, F) = GELU(first half) times second half of y (N, 2 F).
template <class T, Gelu gelu(float)>
void gated_gelu(const T* y, T* out, long N, long F, int threads) {
    PARALLEL_FOR(threads)
    for (long n = 0; n < N; ++n) {
        const T *__restrict yn = y + n * 2 * F, *__restrict gate = yn + F;
        T* __restrict to = out + n * F;
        SIMD for (long f = 0; f < F; ++f) put(to[f], gelu(get(yn[f])).value * get(gate[f]));
    }
}

template <class T, Gelu gelu(float)>
void gated_gelu_gradient(const T* grad, const T* y, T* grad_y, long N, long F, int threads) {
    PARALLEL_FOR(threads)
    for (long n = 0; n < N; ++n) {
        const T *__restrict gn = grad + n * F, *__restrict yn = y + n * 2 * F, *__restrict gate = yn + F;
        T *__restrict to = grad_y + n * 2 * F, *__restrict to_gate = to + F;
        SIMD for (long f = 0; f < F; ++f) {
            const float g = get(gn[f]);
            const Gelu inner = gelu(get(yn[f]));
            put(to[f], g * get(gate[f]) * inner.slope);
            put(to_gate[f], g * inner.value);
        }
    }
}

// Turns the pairs (i, i + E / 2) of each of the first `heads` heads of E features of a token, in place, by the angles of
// its position (Su et al. 2021). x: rows `row` apart. cosines, sines: (positions, E / 2). direction: 1, or -1 for back.
template <class T>
void rotate(T* x, const float* cosines, const float* sines, const int64_t* positions, float direction, long N, long row,
            long heads, long E, int threads) {
    const long half = E / 2;
    PARALLEL_FOR(threads)
    for (long n = 0; n < N; ++n) {
        const float *__restrict c = cosines + positions[n] * half, *__restrict s = sines + positions[n] * half;
        for (long h = 0; h < heads; ++h) {
            T *__restrict low = x + n * row + h * E, *__restrict high = low + half;
            SIMD for (long i = 0; i < half; ++i) {
                const float a = get(low[i]), b = get(high[i]), turned = direction * s[i];
                put(low[i], a * c[i] - b * turned);
                put(high[i], b * c[i] + a * turned);
            }
        }
    }
}

// x[n][d] += bias[d], in place: torch does it in three passes where x is bf16.
template <class T>
void add_bias(T* x, const float* bias, long N, long D, int threads) {
    PARALLEL_FOR(threads)
    for (long n = 0; n < N; ++n) {
        T* __restrict xn = x + n * D;
        SIMD for (long d = 0; d < D; ++d) put(xn[d], get(xn[d]) + bias[d]);
    }
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
            drop_add_norm_gradient<true>(grad, Nothing{}, sum, mean, deviation, gamma, keys, drop, grad_y, grad_x,   \
                                         grad_bias, grad_gamma, grad_beta, N, D, threads);                           \
        });                                                                                                          \
    }                                                                                                                \
    EXPORT void add_norm_##suffix(const T* y, const T* x, const float* gamma, const int32_t* keys,                   \
                                  int32_t threshold, float scale, float eps, T* sum, T* out, float* mean,            \
                                  float* deviation, long N, long D, int threads) {                                   \
        with_dropout(keys, threshold, scale, [&](auto drop) {                                                        \
            drop_add_norm(y, Nothing{}, x, gamma, Nothing{}, keys, drop, eps, sum, out, mean, deviation, N, D,       \
                          threads);                                                                                  \
        });                                                                                                          \
    }                                                                                                                \
    EXPORT void add_norm_gradient_##suffix(const T* grad, const T* grad_sum, const T* sum, const float* mean,        \
                                           const float* deviation, const float* gamma, const int32_t* keys,          \
                                           int32_t threshold, float scale, T* grad_y, T* grad_x,                     \
                                           float* grad_gamma, long N, long D, int threads) {                         \
        with_dropout(keys, threshold, scale, [&](auto drop) {                                                        \
            drop_add_norm_gradient<false>(grad, grad_sum, sum, mean, deviation, gamma, keys, drop, grad_y, grad_x,   \
                                          nullptr, grad_gamma, nullptr, N, D, threads);                              \
        });                                                                                                          \
    }                                                                                                                \
    EXPORT void norm_##suffix(const T* x, const float* gamma, float eps, T* out, float* mean, float* deviation,      \
                              long N, long D, int threads) {                                                         \
        norm(x, gamma, eps, out, mean, deviation, N, D, threads);                                                    \
    }                                                                                                                \
    EXPORT void norm_gradient_##suffix(const T* grad, const T* x, const float* mean, const float* deviation,         \
                                       const float* gamma, T* grad_x, float* grad_gamma, long N, long D,             \
                                       int threads) {                                                                \
        drop_add_norm_gradient<false>(grad, Nothing{}, x, mean, deviation, gamma, nullptr, NoDropout{},              \
                                      static_cast<T*>(nullptr), grad_x, nullptr, grad_gamma, nullptr, N, D,          \
                                      threads);                                                                      \
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
    EXPORT void gated_gelu_##suffix(const T* y, T* out, long N, long F, int by_tanh, int threads) {                  \
        (by_tanh ? gated_gelu<T, tanh_gelu> : gated_gelu<T, exact_gelu>)(y, out, N, F, threads);                     \
    }                                                                                                                \
    EXPORT void gated_gelu_gradient_##suffix(const T* grad, const T* y, T* grad_y, long N, long F, int by_tanh,      \
                                             int threads) {                                                          \
        (by_tanh ? gated_gelu_gradient<T, tanh_gelu> : gated_gelu_gradient<T, exact_gelu>)(grad, y, grad_y, N, F,    \
                                                                                           threads);                 \
    }                                                                                                                \
    EXPORT void rotate_##suffix(T* x, const float* cosines, const float* sines, const int64_t* positions,            \
                                float direction, long N, long row, long heads, long E, int threads) {                \
        rotate(x, cosines, sines, positions, direction, N, row, heads, E, threads);                                  \
    }                                                                                                                \
    EXPORT void add_bias_##suffix(T* x, const float* bias, long N, long D, int threads) {                            \
        add_bias(x, bias, N, D, threads);                                                                            \
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
