// Numbers: bfloat16, exp, and the hash that dropout's bits come from. Everything here vectorises.
#pragma once
#include <cstdint>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))
#define SIMD _Pragma("omp simd")
#define PARALLEL_FOR(threads) _Pragma("omp parallel for num_threads(threads) schedule(static)")

struct bf16 {
    uint16_t bits;
};

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

inline float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

inline float get(float x) { return x; }
inline float get(bf16 x) { return float_of(uint32_t(x.bits) << 16); }
inline void put(float& to, float x) { to = x; }
// The bits of the nearest bf16, ties to even; what is not a number stays so.
inline uint32_t rounded(float x) {
    uint32_t bits = bits_of(x);
    return x != x ? 0x7fc0u : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
inline void put(bf16& to, float x) { to.bits = uint16_t(rounded(x)); }

// Relative error below 2e-7; below -87, where the last normal number is, not smaller than its value there (1.6e-38).
inline float exp_of(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float shifted = x * 1.4426950409f + 12582912.0f;  // 1.5 * 2^23: rounds to a whole number, held in the low bits
    float n = shifted - 12582912.0f;
    float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;  // ln 2 in two parts
    float y = 1.0f + r * (1.0f + r * (0.5f + r * (0.166666667f + r * (0.0416666667f + r * (8.33333377e-3f
              + r * (1.38888892e-3f + r * 1.98412701e-4f))))));
    return y * float_of((bits_of(shifted) + 127u) << 23);  // what is above the low bits is shifted out
}

// See bert_trainer/model/dropout.py, which has the same hash in tensor operations and says where it is from.
constexpr uint32_t GOLDEN = 0x9E3779B1u;

inline uint32_t mix(uint32_t bits) {
    bits = (bits ^ (bits >> 16)) * 0x7FEB352Du;
    bits = (bits ^ (bits >> 15)) * 0x846CA68Bu;
    return bits ^ (bits >> 16);
}

// What is dropped at one site: an element stays where mix(key + place * GOLDEN), as a signed number, reaches the
// threshold, and is then scaled. A type of its own for no dropout keeps its question out of the loops.
struct Dropout {
    int32_t threshold;
    float scale;
    inline float factor(uint32_t key, uint32_t place) const {
        return int32_t(mix(key + place * GOLDEN)) >= threshold ? scale : 0.0f;
    }
};

struct NoDropout {
    inline float factor(uint32_t, uint32_t) const { return 1.0f; }
};

// Call work with what is dropped. keys: null for nothing.
template <class Work>
inline void with_dropout(const int32_t* keys, int32_t threshold, float scale, Work work) {
    if (keys) work(Dropout{threshold, scale});
    else work(NoDropout{});
}
