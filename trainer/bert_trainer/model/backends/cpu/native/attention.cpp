// Softmax attention inside each row of a flat micro-batch, with dropout on its weights; forward and backward.
//
// One task is one head of one row of T tokens with E features. Its products run on tiles in the processor's cache:
// neither scores nor weights are ever written to memory as a whole, and no row is padded to another's length. The
// backward pass makes the weights again from the logarithm of the softmax's sum, as FlashAttention does (Dao et al.
// 2022, algorithm 4).
//
// A token sees those of its row that are at most `reach` places away, on both sides, itself among them. A task goes
// through its row by blocks of queries, and copies only what a block sees: time and memory grow with T * reach.
//
// A tile's operand is kept in units of 32 bits: one float, or two neighbouring bf16 along the axis that is summed.
#include <algorithm>
#include <cmath>
#include <vector>

#include "arithmetic.h"
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace {

// A register tile is ROWS by up to WIDE vectors. Its sums have to stay in registers, beside a row of operands: of the 32
// of AVX-512 they take 16, of AVX2's 16 they take 8. A vector wider than the processor's is as bad: GCC keeps it in memory.
#if defined(__AVX512F__)
constexpr long LANES = 16, WIDE = 4;
#elif defined(__AVX__)
constexpr long LANES = 8, WIDE = 2;
#else
constexpr long LANES = 4, WIDE = 2;
#endif
constexpr long ROWS = 4;
typedef float Vector __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

// Kinds of units. multiply_add: sums in fp32 whatever the unit holds. unit: neighbours along the axis that is summed.
struct Float {
    static constexpr long DEPTH = 1;  // numbers in a unit
    using Element = float;
    static Vector multiply_add(uint32_t a, Vector b, Vector sum) { return sum + float_of(a) * b; }
    static uint32_t unit(float first, float) { return bits_of(first); }
    static uint32_t unit(bf16 first, bf16) { return bits_of(get(first)); }
};

#ifdef __AVX512BF16__
// Weights and gradients are rounded to bf16 before their products, which Float units leave in fp32: in bf16, libraries
// with and without this instruction give results that differ by that rounding.
struct Pair {
    static constexpr long DEPTH = 2;
    using Element = bf16;
    static Vector multiply_add(uint32_t a, Vector b, Vector sum) {
        return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(int(a)), (__m512bh)(__m512)b);
    }
    static uint32_t unit(float first, float second) { return rounded(first) | rounded(second) << 16; }
    static uint32_t unit(bf16 first, bf16 second) { return first.bits | uint32_t(second.bits) << 16; }
};
#endif

#ifdef __AVX512F__
// out[j][i] = in[i][j] for 16 by 16 units; rows of `in` from the given number on are taken as zeros.
inline void transpose(const uint32_t* in, long in_row, long rows, uint32_t* out, long out_row) {
    __m512i r[LANES], t[LANES];
#pragma GCC unroll 16
    for (long i = 0; i < LANES; ++i) r[i] = i < rows ? _mm512_loadu_si512(in + i * in_row) : _mm512_setzero_si512();
#pragma GCC unroll 8
    for (long i = 0; i < LANES; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    // Afterwards r[4g + c] has in its l-th quarter column 4l + c of the rows 4g to 4g + 3.
#pragma GCC unroll 4
    for (long i = 0; i < LANES; i += 4)
#pragma GCC unroll 2
        for (long half = 0; half < 2; ++half) {
            r[i + 2 * half] = _mm512_unpacklo_epi64(t[i + half], t[i + half + 2]);
            r[i + 2 * half + 1] = _mm512_unpackhi_epi64(t[i + half], t[i + half + 2]);
        }
#pragma GCC unroll 4
    for (long c = 0; c < 4; ++c) {
        const __m512i even_low = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
        const __m512i odd_low = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
        const __m512i even_high = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
        const __m512i odd_high = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
        _mm512_storeu_si512(out + c * out_row, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
        _mm512_storeu_si512(out + (4 + c) * out_row, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
        _mm512_storeu_si512(out + (8 + c) * out_row, _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
        _mm512_storeu_si512(out + (12 + c) * out_row, _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
    }
}
#endif

// out (rows, vectors * LANES) = a (rows, units) times b (units, vectors * LANES).
// Unit (i, k) of a lies at a[i * a_row + k * a_unit]; row k of b starts at b[k * b_row].
template <class U, long rows, long vectors>
inline void multiply_tile(const uint32_t* a, long a_row, long a_unit, const uint32_t* b, long b_row, long units,
                          float* out, long out_row) {
    // In registers, as long as the loops below are unrolled; otherwise they would be an array in memory.
    Vector sums[rows][vectors] = {};
    for (long k = 0; k < units; ++k) {
        Vector operand[vectors];
#pragma GCC unroll 8
        for (long v = 0; v < vectors; ++v) operand[v] = *reinterpret_cast<const Vector*>(b + k * b_row + v * LANES);
#pragma GCC unroll 8
        for (long i = 0; i < rows; ++i)
#pragma GCC unroll 8
            for (long v = 0; v < vectors; ++v)
                sums[i][v] = U::multiply_add(a[i * a_row + k * a_unit], operand[v], sums[i][v]);
    }
#pragma GCC unroll 8
    for (long i = 0; i < rows; ++i)
#pragma GCC unroll 8
        for (long v = 0; v < vectors; ++v) *reinterpret_cast<Vector*>(out + i * out_row + v * LANES) = sums[i][v];
}

// The same for any number of columns that is a multiple of LANES. Rows are always ROWS: a last tile computes some that
// nobody reads, from whatever lies in the operand's padding.
template <class U>
void multiply(const uint32_t* a, long a_row, long a_unit, const uint32_t* b, long b_row, long units, float* out,
              long out_row, long columns) {
    long n = 0;
    for (; n + WIDE * LANES <= columns; n += WIDE * LANES)
        multiply_tile<U, ROWS, WIDE>(a, a_row, a_unit, b + n, b_row, units, out + n, out_row);
    for (; n < columns; n += LANES)
        multiply_tile<U, ROWS, 1>(a, a_row, a_unit, b + n, b_row, units, out + n, out_row);
}

// What all tasks share. Letters: N tokens, H heads, E features of a head, D = H * E.
struct Problem {
    const int32_t* keys_B;  // of the site, or null for no dropout
    float scale;            // of scores
    long H, E;
    long row;    // elements from one token to the next in q, k and v
    long reach;  // at least the longest row's length where every token sees its whole row
};

struct Task {
    long first, T, row, head;  // the row's first token, its tokens, its number
};

// The width of score tiles. Columns beyond the keys are zeros or are cleared.
long whole_vectors(long keys) { return (keys + LANES - 1) / LANES * LANES; }
// From one row over a block's keys to the next. No multiple of 1 KiB: a column would lie in few sets of the cache, which
// costs 4 to 9 % of the backward pass on rows of 256 and 512 tokens (AVX2).
long stride_of(long keys) {
    const long width = whole_vectors(keys);
    return width % 256 ? width : width + LANES;
}

// Some queries of a row, and the keys that they see; by their places in the row.
struct Block {
    long first, queries, low, keys;
    Block(const Task& task, long reach, long first, bool whole)
        : first(first), queries(whole ? task.T : std::min(QUERIES, task.T - first)), low(std::max(0L, first - reach)),
          keys(std::min(task.T, first + queries + reach) - low) {}
    // Keys that some of the ROWS queries from `query` on see: from a whole vector on, counted from `low`.
    struct Span {
        long begin, keys;
    };
    Span seen(long query, long reach) const {
        const long begin = std::max(0L, query - reach - low) / LANES * LANES;
        return {begin, std::min(keys, query + ROWS + reach - low) - begin};
    }
    // A multiple of ROWS, so that tiles begin where units do.
    static constexpr long QUERIES = 256;
};

// Copies of `count` rows of one head as operands, with zeros beyond them.
template <class U, class T>
struct Operand {
    static constexpr bool is_unit = sizeof(T) * U::DEPTH == sizeof(uint32_t);  // as they are, neighbours make a unit
    // (T, E) summed over E, for the left.
    static void rows(const T* x, long stride, long count, long E, uint32_t* out) {
        for (long i = 0; i < count; ++i) {
            auto* __restrict to = reinterpret_cast<typename U::Element*>(out) + i * E;
            const T* __restrict from = x + i * stride;
            if constexpr (is_unit) std::copy(from, from + E, to);
            else SIMD for (long e = 0; e < E; ++e) put(to[e], get(from[e]));
        }
    }
    // (E, T) summed over E, for the right.
    static void columns(const T* x, long stride, long count, long E, uint32_t* out) {
        const long width = stride_of(count), deep = E / U::DEPTH;
#ifdef __AVX512F__
        if (is_unit && deep % LANES == 0) {
            for (long first = 0; first < count; first += LANES)
                for (long e = 0; e < deep; e += LANES)
                    transpose(reinterpret_cast<const uint32_t*>(x + first * stride) + e, stride / U::DEPTH,
                              count - first, out + e * width + first, width);
            return;
        }
#endif
        for (long first = 0; first < count; first += LANES) {  // as many as share the lines that are written
            const long stop = std::min(first + LANES, count);
            for (long e = 0; e < deep; ++e)
                for (long i = first; i < stop; ++i) {
                    const T* from = x + i * stride + e * U::DEPTH;
                    out[e * width + i] = U::unit(from[0], from[U::DEPTH - 1]);
                }
        }
        for (long e = 0; e < deep; ++e) std::fill(out + e * width + count, out + (e + 1) * width, 0u);
    }
    // (T, E) summed over T, for the right.
    static void stack(const T* x, long stride, long count, long E, uint32_t* out) {
        long i = 0;
        for (; i + U::DEPTH <= count; i += U::DEPTH) join(x + i * stride, x + (i + U::DEPTH - 1) * stride, E, out + i / U::DEPTH * E);
        if (i < count) {
            join<true>(x + i * stride, x + i * stride, E, out + i / U::DEPTH * E);
            i += U::DEPTH;
        }
        std::fill(out + i / U::DEPTH * E, out + whole_vectors(count) / U::DEPTH * E, 0u);
    }

    // Two neighbours along the axis that is summed, as units; alone: nothing but the first.
    template <bool alone = false>
    static void join(const T* __restrict first, const T* __restrict second, long count, uint32_t* __restrict out) {
        SIMD for (long e = 0; e < count; ++e) out[e] = U::unit(first[e], alone ? T{} : second[e]);
    }
};

// Some rows of a tile (rows, width) as units along the rows' axis; the tile's first row is even.
template <class U>
void turn(const float* tile, long rows, long width, uint32_t* out, long out_row) {
    long i = 0;
    for (; i + U::DEPTH <= rows; i += U::DEPTH, out += out_row)
        Operand<U, float>::join(tile + i * width, tile + (i + U::DEPTH - 1) * width, width, out);
    if (i < rows) Operand<U, float>::template join<true>(tile + i * width, tile + i * width, width, out);
}

template <class U>
void put_row(const float* __restrict from, long width, uint32_t* out) {
    auto* __restrict to = reinterpret_cast<typename U::Element*>(out);
    SIMD for (long j = 0; j < width; ++j) put(to[j], from[j]);
}

uint32_t head_key(const Problem& p, const Task& t) {
    return p.keys_B ? mix(uint32_t(p.keys_B[t.row]) + uint32_t(t.head) * GOLDEN) : 0;
}

// In a tile's ROWS rows, of keys from the place `low` on: what their queries, from the place `query` on, do not see.
void fill_unseen(float* tile, long width, long keys, long low, long query, long reach, float value) {
    for (long i = 0; i < ROWS; ++i, tile += width) {
        const long begin = std::clamp(query + i - reach - low, 0L, keys);
        const long end = std::clamp(query + i + reach + 1 - low, begin, keys);
        std::fill(tile, tile + begin, value);
        std::fill(tile + end, tile + keys, value);
    }
}

// The next two work on the ROWS rows of a tile at once: a row alone is too short to hide how long exp and hash take.
// Rows beyond the last query hold anything; nothing of them is stored.
static_assert(ROWS == 4);

void clear_behind(float* tile, long width, long T) {
    for (long i = 0; i < ROWS; ++i) std::fill(tile + i * width + T, tile + (i + 1) * width, 0.0f);
}

// tile (ROWS, width): T scores of each query, turned into weights, dropped ones 0, and zeros behind them. logs: the
// logarithms of the softmax's sums.
template <class Drop>
void softmax(float* tile, long width, long T, float scale, const uint32_t* keys, Drop drop, float* logs) {
    float *__restrict a = tile, *__restrict b = tile + width, *__restrict c = b + width, *__restrict d = c + width;
    float top_a = a[0], top_b = b[0], top_c = c[0], top_d = d[0];
#pragma omp simd reduction(max : top_a, top_b, top_c, top_d)
    for (long j = 0; j < T; ++j) {
        top_a = a[j] > top_a ? a[j] : top_a;
        top_b = b[j] > top_b ? b[j] : top_b;
        top_c = c[j] > top_c ? c[j] : top_c;
        top_d = d[j] > top_d ? d[j] : top_d;
    }
    // The largest score is subtracted before it is scaled: no exponent is above 0, and nothing overflows.
    float sum_a = 0.0f, sum_b = 0.0f, sum_c = 0.0f, sum_d = 0.0f;
#pragma omp simd reduction(+ : sum_a, sum_b, sum_c, sum_d)
    for (long j = 0; j < T; ++j) {
        sum_a += a[j] = exp_of((a[j] - top_a) * scale);
        sum_b += b[j] = exp_of((b[j] - top_b) * scale);
        sum_c += c[j] = exp_of((c[j] - top_c) * scale);
        sum_d += d[j] = exp_of((d[j] - top_d) * scale);
    }
    const float share_a = 1.0f / sum_a, share_b = 1.0f / sum_b, share_c = 1.0f / sum_c, share_d = 1.0f / sum_d;
    // Dropped after normalising: the sums above are those of all weights.
    const uint32_t key_a = keys[0], key_b = keys[1], key_c = keys[2], key_d = keys[3];
    SIMD for (long j = 0; j < T; ++j) {
        a[j] *= share_a * drop.factor(key_a, uint32_t(j));
        b[j] *= share_b * drop.factor(key_b, uint32_t(j));
        c[j] *= share_c * drop.factor(key_c, uint32_t(j));
        d[j] *= share_d * drop.factor(key_d, uint32_t(j));
    }
    clear_behind(tile, width, T);
    const float tops[ROWS] = {top_a, top_b, top_c, top_d}, sums[ROWS] = {sum_a, sum_b, sum_c, sum_d};
    for (long i = 0; i < ROWS; ++i) logs[i] = tops[i] * scale + std::log(sums[i]);
}

// tile: scores, turned into weights, dropped ones 0. grads: gradients of those, turned into gradients of scores. Both
// (ROWS, width), with zeros behind T. shifts: the logarithms of `softmax`; deltas: gradient times output of each query.
template <class Drop>
void softmax_gradient(float* tile, float* grads, long width, long T, float scale, const float* shifts,
                      const float* deltas, const uint32_t* keys, Drop drop) {
    // With weights p = exp(s * scale - shift), dropout's factor m and gradients dp of dropped weights:
    // delta = sum_j p_j m_j dp_j, which is the output times its gradient, and ds_j = p_j (m_j dp_j - delta) * scale.
    for (long i = 0; i < ROWS; i += 2) {
        float *__restrict a = tile + i * width, *__restrict b = a + width;
        float *__restrict to_a = grads + i * width, *__restrict to_b = to_a + width;
        const float shift_a = shifts[i], shift_b = shifts[i + 1], delta_a = deltas[i], delta_b = deltas[i + 1];
        const uint32_t key_a = keys[i], key_b = keys[i + 1];
        SIMD for (long j = 0; j < T; ++j) {
            const float weight_a = exp_of(a[j] * scale - shift_a), factor_a = drop.factor(key_a, uint32_t(j));
            const float weight_b = exp_of(b[j] * scale - shift_b), factor_b = drop.factor(key_b, uint32_t(j));
            to_a[j] = weight_a * (to_a[j] * factor_a - delta_a) * scale;
            to_b[j] = weight_b * (to_b[j] * factor_b - delta_b) * scale;
            a[j] = weight_a * factor_a;
            b[j] = weight_b * factor_b;
        }
    }
    clear_behind(tile, width, T);
    clear_behind(grads, width, T);
}

// The memory of one thread, which grows with the blocks that it meets. Forward, weights exist for a tile of ROWS queries
// only; backward, weights and score gradients of a block are kept, since gradients of keys and values are sums over
// queries.
template <class U>
struct Scratch {
    void fit(const Block& block, long E, bool backward) {
        const long width = stride_of(block.keys), rows = whole_vectors(block.queries), D = U::DEPTH;
        for (auto& part : operands)
            if (backward || &part < operands + 3) grow(part, std::max(rows, width) * E / D);
        grow(scores, ROWS * width);
        grow(products, ROWS * std::max(width, E));
        grow(weights, ROWS * width / D);
        if (backward) grow(dropped, rows * width / D), grow(turned, rows * width / D);
    }
    template <class Number>
    static void grow(std::vector<Number>& part, long size) {
        if (long(part.size()) < size) part.resize(size);
    }
    std::vector<uint32_t> operands[7];
    std::vector<float> scores, products, sums;
    std::vector<uint32_t> weights, dropped, turned;
};

template <class U, class T, class Drop>
void attend(const Problem& p, Drop drop, const Task& task, const T* q, const T* k, const T* v, T* out, float* logsum,
            Scratch<U>& s) {
    const long E = p.E, deep = E / U::DEPTH, at = task.first * p.row + task.head * E;
    const uint32_t key = head_key(p, task);
    const bool windowed = p.reach < task.T - 1;
    for (long next = 0; next < task.T;) {
        const Block block(task, p.reach, next, !windowed);
        next += block.queries;
        s.fit(block, E, false);
        uint32_t *queries = s.operands[0].data(), *keys = s.operands[1].data(), *values = s.operands[2].data();
        Operand<U, T>::rows(q + at + block.first * p.row, p.row, block.queries, E, queries);
        Operand<U, T>::columns(k + at + block.low * p.row, p.row, block.keys, E, keys);
        Operand<U, T>::stack(v + at + block.low * p.row, p.row, block.keys, E, values);
        // Tile by tile of ROWS queries: scores (ROWS, keys) = Q K^T, softmax, output (ROWS, E) = weights V.
        for (long first = block.first; first < next; first += ROWS) {
            const long rows = std::min(ROWS, next - first);
            const auto [begin, seen] = block.seen(first, p.reach);
            const long width = whole_vectors(seen), units = width / U::DEPTH, low = block.low + begin;
            multiply<U>(queries + (first - block.first) * deep, deep, 1, keys + begin, stride_of(block.keys), deep,
                        s.scores.data(), width, width);
            uint32_t row_keys[ROWS];
            float logs[ROWS];
            // Places in the row, not in the micro-batch or the block: any split of rows drops the same weights.
            for (long i = 0; i < ROWS; ++i)
                row_keys[i] = mix(key + uint32_t(first + i) * GOLDEN) + uint32_t(low) * GOLDEN;
            if (windowed) fill_unseen(s.scores.data(), width, seen, low, first, p.reach, -INFINITY);
            softmax(s.scores.data(), width, seen, p.scale, row_keys, drop, logs);
            // `exp_of` ends above 0. Those 1e-38 were nothing in a sum of at least 1.
            if (windowed) fill_unseen(s.scores.data(), width, seen, low, first, p.reach, 0.0f);
            for (long i = 0; i < rows; ++i) {
                logsum[(task.first + first + i) * p.H + task.head] = logs[i];
                put_row<U>(s.scores.data() + i * width, width, s.weights.data() + i * units);
            }
            multiply<U>(s.weights.data(), units, 1, values + begin / U::DEPTH * E, E, units, s.products.data(), E, E);
            for (long i = 0; i < rows; ++i) {
                T* to = out + (task.first + first + i) * p.H * E + task.head * E;
                SIMD for (long e = 0; e < E; ++e) put(to[e], s.products[i * E + e]);
            }
        }
    }
}

template <class T>
void store_tile(const float* from, long rows, long E, T* to, long stride) {
    for (long i = 0; i < rows; ++i)
#pragma omp simd
        for (long e = 0; e < E; ++e) put(to[i * stride + e], from[i * E + e]);
}

// grad and out: (N, D), gradient of the output and the output itself. Gradients of q, k and v have q's layout.
template <class U, class T, class Drop>
void attend_gradient(const Problem& p, Drop drop, const Task& task, const T* grad, const T* out, const float* logsum, const T* q,
                     const T* k, const T* v, T* grad_q, T* grad_k, T* grad_v, Scratch<U>& s) {
    const long E = p.E, D = p.H * E, deep = E / U::DEPTH;
    const long at = task.first * p.row + task.head * E, at_out = task.first * D + task.head * E;
    const uint32_t key = head_key(p, task);
    const bool windowed = p.reach < task.T - 1;
    // Gradients of keys and values (T, E) are sums over blocks where the row has several.
    float* sums[2] = {};
    for (long next = 0; next < task.T;) {
        // Not only with a window: a block's queries times its keys are kept. Rows that BERT has are whole.
        const Block block(task, p.reach, next, !windowed && task.T <= 4 * Block::QUERIES);
        next += block.queries;
        s.fit(block, E, true);
        if (block.first == 0 && next < task.T) {
            s.sums.assign(2 * task.T * E, 0.0f);
            sums[0] = s.sums.data(), sums[1] = sums[0] + task.T * E;
        }
        // Q (T, E), K^T (E, T), dO (T, E) and V^T (E, T) for scores and weight gradients; K, Q and dO stacked along T for
        // dQ = dS K, dK = dS^T Q and dV = P^T dO, where P are the weights after dropout.
        uint32_t* o[7];
        for (int i = 0; i < 7; ++i) o[i] = s.operands[i].data();
        const long from_q = at + block.first * p.row, from_k = at + block.low * p.row, from_out = at_out + block.first * D;
        Operand<U, T>::rows(q + from_q, p.row, block.queries, E, o[0]);
        Operand<U, T>::columns(k + from_k, p.row, block.keys, E, o[1]);
        Operand<U, T>::rows(grad + from_out, D, block.queries, E, o[2]);
        Operand<U, T>::columns(v + from_k, p.row, block.keys, E, o[3]);
        Operand<U, T>::stack(k + from_k, p.row, block.keys, E, o[4]);
        Operand<U, T>::stack(q + from_q, p.row, block.queries, E, o[5]);
        Operand<U, T>::stack(grad + from_out, D, block.queries, E, o[6]);
        const long block_width = stride_of(block.keys);
        float *score = s.scores.data(), *grads = s.products.data();
        uint32_t *dropped = s.dropped.data(), *turned = s.turned.data();
        for (long first = block.first; first < next; first += ROWS) {
            const long rows = std::min(ROWS, next - first), tile = first - block.first;
            const auto [begin, seen] = block.seen(first, p.reach);
            const long width = whole_vectors(seen), units = width / U::DEPTH, low = block.low + begin;
            multiply<U>(o[0] + tile * deep, deep, 1, o[1] + begin, block_width, deep, score, width, width);
            multiply<U>(o[2] + tile * deep, deep, 1, o[3] + begin, block_width, deep, grads, width, width);
            uint32_t row_keys[ROWS];
            float deltas[ROWS] = {}, shifts[ROWS] = {};
            for (long i = 0; i < ROWS; ++i)
                row_keys[i] = mix(key + uint32_t(first + i) * GOLDEN) + uint32_t(low) * GOLDEN;
            for (long i = 0; i < rows; ++i) {
                const long token = first + i;
                const T *gi = grad + at_out + token * D, *oi = out + at_out + token * D;
                float delta = 0.0f;
#pragma omp simd reduction(+ : delta)
                for (long e = 0; e < E; ++e) delta += get(gi[e]) * get(oi[e]);
                deltas[i] = delta;
                shifts[i] = logsum[(task.first + token) * p.H + task.head];
            }
            softmax_gradient(score, grads, width, seen, p.scale, shifts, deltas, row_keys, drop);
            if (windowed)
                for (float* some : {score, grads}) fill_unseen(some, width, seen, low, first, p.reach, 0.0f);
            for (long i = 0; i < rows; ++i) put_row<U>(grads + i * width, width, s.weights.data() + i * units);
            turn<U>(grads, rows, width, turned + tile / U::DEPTH * block_width + begin, block_width);
            turn<U>(score, rows, width, dropped + tile / U::DEPTH * block_width + begin, block_width);
            multiply<U>(s.weights.data(), units, 1, o[4] + begin / U::DEPTH * E, E, units, grads, E, E);
            store_tile(grads, rows, E, grad_q + at + first * p.row, p.row);
        }
        // Only now are all the block's rows of P and dS there, which dK and dV sum over: for ROWS keys, those of the
        // queries that see one of them, whose tiles hold zeros for the others.
        for (long first = 0; first < block.keys; first += ROWS) {
            const long place = block.low + first, rows = std::min(ROWS, block.keys - first);
            const long begin = std::max(0L, place - p.reach - block.first) / U::DEPTH;
            const long stop = std::min(block.queries, place + ROWS + p.reach - block.first);
            const long units = (stop + U::DEPTH - 1) / U::DEPTH - begin;
            const uint32_t* const weights[2] = {turned, dropped};
            T* const to[2] = {grad_k, grad_v};
            for (int i = 0; i < 2; ++i) {
                multiply<U>(weights[i] + begin * block_width + first, 1, block_width, o[5 + i] + begin * E, E, units, grads,
                            E, E);
                if (sums[i]) {
                    SIMD for (long e = 0; e < rows * E; ++e) sums[i][place * E + e] += grads[e];
                } else {
                    store_tile(grads, rows, E, to[i] + at + place * p.row, p.row);
                }
            }
        }
    }
    if (!sums[0]) return;
    store_tile(sums[0], task.T, E, grad_k + at, p.row);
    store_tile(sums[1], task.T, E, grad_v + at, p.row);
}

// Heads of rows, the longest rows first, so that threads end together.
std::vector<Task> tasks_of(const int64_t* starts, long B, long N, long H) {
    std::vector<Task> tasks;
    tasks.reserve(size_t(B) * H);
    for (long b = 0; b < B; ++b)
        for (long h = 0; h < H; ++h) tasks.push_back({long(starts[b]), long((b + 1 < B ? starts[b + 1] : N) - starts[b]), b, h});
    std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.T > b.T; });
    return tasks;
}

template <class U, class Work>
void run_tasks(const std::vector<Task>& tasks, int threads, Work work) {
    const long count = long(tasks.size());
#pragma omp parallel num_threads(threads)
    {
        Scratch<U> scratch;
        // Every task writes its own part of the results: who takes which changes nothing.
#pragma omp for schedule(dynamic)
        for (long i = 0; i < count; ++i) work(tasks[i], scratch);
    }
}

#ifdef __AVX512BF16__
using UnitOfBf16 = Pair;
#else
using UnitOfBf16 = Float;  // converted in cache
#endif

}  // namespace

#define FOR_TYPE(T, U, suffix)                                                                                     \
    EXPORT void attention_##suffix(const T* q, const T* k, const T* v, const int64_t* starts, const int32_t* keys, \
                                   int32_t threshold, float drop_scale, float scale, T* out, float* logsum,        \
                                   long reach, long row, long B, long N, long H, long E, int threads) {            \
        const Problem problem{keys, scale, H, E, row, reach};                                                      \
        with_dropout(keys, threshold, drop_scale, [&](auto drop) {                                                 \
            run_tasks<U>(tasks_of(starts, B, N, H), threads, [&](const Task& task, Scratch<U>& scratch) {          \
                attend<U, T>(problem, drop, task, q, k, v, out, logsum, scratch);                                  \
            });                                                                                                    \
        });                                                                                                        \
    }                                                                                                              \
    EXPORT void attention_gradient_##suffix(                                                                       \
        const T* grad, const T* out, const float* logsum, const T* q, const T* k, const T* v,                      \
        const int64_t* starts, const int32_t* keys, int32_t threshold, float drop_scale, float scale, T* grad_q,   \
        T* grad_k, T* grad_v, long reach, long row, long B, long N, long H, long E, int threads) {                             \
        const Problem problem{keys, scale, H, E, row, reach};                                                      \
        with_dropout(keys, threshold, drop_scale, [&](auto drop) {                                                 \
            run_tasks<U>(tasks_of(starts, B, N, H), threads, [&](const Task& task, Scratch<U>& scratch) {          \
                attend_gradient<U, T>(problem, drop, task, grad, out, logsum, q, k, v, grad_q, grad_k, grad_v,     \
                                      scratch);                                                                    \
            });                                                                                                    \
        });                                                                                                        \
    }

FOR_TYPE(float, Float, f32)
FOR_TYPE(bf16, UnitOfBf16, bf16)
