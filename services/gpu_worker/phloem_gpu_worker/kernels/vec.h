// Sixteen floats at a time, in the three forms that CPUs offer: AVX-512, AVX2 with FMA, and plain code for any other.
//
// Every operation gives the same bits whatever is computed beside it; sums over lanes have one fixed order. Results may differ between the
// three forms, which is why one process uses one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define PHLOEM_LEVEL "avx512bf16"
#define PHLOEM_BF16_DOT 1
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define PHLOEM_LEVEL "avx512"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define PHLOEM_LEVEL "avx2"
#else
#define PHLOEM_LEVEL "portable"
#endif

namespace phloem {

using bf16 = uint16_t;  // the upper half of a float
using half = uint16_t;  // IEEE binary16

using Lanes = uint16_t; // one bit per lane, the first lane's lowest

constexpr int LANES = 16;
constexpr float LOWEST = -std::numeric_limits<float>::infinity();

inline float as_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint32_t as_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float widen(bf16 value) { return as_float(uint32_t(value) << 16); }

// Rounds to nearest, ties to even; a NaN stays one.
inline bf16 narrow(float value) {
    const uint32_t bits = as_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return bf16((bits >> 16) | 0x40u);
    return bf16((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

struct F16 {
    __m512 v;
};

inline F16 zero() { return {_mm512_setzero_ps()}; }
inline F16 set1(float x) { return {_mm512_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
inline F16 add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Lanes at_least(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
inline Lanes not_numbers(F16 a) { return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q); }
inline F16 round(F16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a * 2^n for whole n
inline F16 scale2(F16 a, F16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// The first `count` lanes of a, -inf in the others.
inline __mmask16 lowest_lanes(int count) { return count >= LANES ? __mmask16(0xffff) : __mmask16((1u << count) - 1u); }
inline F16 first(F16 a, int count) { return {_mm512_mask_blend_ps(lowest_lanes(count), _mm512_set1_ps(LOWEST), a.v)}; }
// `count` floats from p on, at least one; -inf in the lanes beyond.
inline F16 load_first(const float* p, int count) { return {_mm512_mask_loadu_ps(_mm512_set1_ps(LOWEST), lowest_lanes(count), p)}; }
// The lanes of a that are set, -inf in the others.
inline F16 only(F16 a, Lanes set) { return {_mm512_mask_blend_ps(set, _mm512_set1_ps(LOWEST), a.v)}; }
// Writes the lanes that are set one after the other; LANES floats at p are overwritten.
inline void pack_lanes(float* p, F16 a, Lanes set) { _mm512_storeu_ps(p, _mm512_maskz_compress_ps(set, a.v)); }

// Sixteen sums in double precision.
struct D16 {
    __m512d a, b;
};

inline D16 nothing() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
inline __m512d lower_half(F16 x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x.v)); }
inline __m512d upper_half(F16 x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1)); }
inline D16 add(D16 s, F16 x) { return {_mm512_add_pd(s.a, lower_half(x)), _mm512_add_pd(s.b, upper_half(x))}; }
// Adds the lanes of x that are no smaller than those of y.
inline D16 add_at_least(D16 s, F16 x, F16 y) {
    const Lanes large = at_least(x, y);
    return {_mm512_mask_add_pd(s.a, __mmask8(large), s.a, lower_half(x)), _mm512_mask_add_pd(s.b, __mmask8(large >> 8), s.b, upper_half(x))};
}
inline void store(double* p, D16 s) {
    _mm512_storeu_pd(p, s.a);
    _mm512_storeu_pd(p + 8, s.b);
}
inline F16 load_half(const half* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
inline F16 load_bf16(const bf16* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}

#if defined(PHLOEM_BF16_DOT)
inline void store_bf16(bf16* p, F16 a) {
    const __m256bh rounded = _mm512_cvtneps_pbh(a.v);
    std::memcpy(p, &rounded, sizeof rounded);
}
#else
inline void store_bf16(bf16* p, F16 a) {
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
#endif

// Sixteen pairs of bf16: lane i holds elements 2i (low half) and 2i + 1.
struct Pairs {
    __m512i v;
};

inline Pairs load_pairs(const bf16* p) { return {_mm512_loadu_si512(p)}; }
inline Pairs same_pair(const bf16* p) {
    int32_t both;
    std::memcpy(&both, p, sizeof both);
    return {_mm512_set1_epi32(both)};
}

#if defined(PHLOEM_BF16_DOT)
inline F16 dot(F16 acc, Pairs a, Pairs b) { return {_mm512_dpbf16_ps(acc.v, (__m512bh)a.v, (__m512bh)b.v)}; }
#else
inline F16 dot(F16 acc, Pairs a, Pairs b) {
    const __m512i upper = _mm512_set1_epi32(int32_t(0xffff0000u));
    const __m512 odd = _mm512_fmadd_ps(
        _mm512_castsi512_ps(_mm512_and_si512(a.v, upper)), _mm512_castsi512_ps(_mm512_and_si512(b.v, upper)), acc.v);
    return {_mm512_fmadd_ps(
        _mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(b.v, 16)), odd)};
}
#endif

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

struct F16 {
    __m256 a, b;
};

inline F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F16 x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
inline F16 add(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F16 sub(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F16 mul(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F16 div(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F16 fma(F16 x, F16 y, F16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F16 max(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F16 min(F16 x, F16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline Lanes signs(__m256 low, __m256 high) { return Lanes(_mm256_movemask_ps(low) | _mm256_movemask_ps(high) << 8); }
inline Lanes at_least(F16 x, F16 y) { return signs(_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ)); }
inline Lanes not_numbers(F16 x) { return signs(_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)); }
inline F16 round(F16 x) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, nearest), _mm256_round_ps(x.b, nearest)};
}
inline __m256 scale2_half(__m256 x, __m256 n) {
    // In two steps, since 2^n alone may not be a normal number.
    const __m256i whole = _mm256_cvtps_epi32(n), some = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
    const __m256i rest = _mm256_sub_epi32(whole, some);
    const __m256 one = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(some, bias), 23));
    const __m256 two = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(x, one), two);
}
inline F16 scale2(F16 x, F16 n) { return {scale2_half(x.a, n.a), scale2_half(x.b, n.b)}; }
inline F16 first(F16 x, int count) {
    const __m256i kept = _mm256_set1_epi32(count);
    const __m256i low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), high = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
    const __m256 none = _mm256_set1_ps(LOWEST);
    return {_mm256_blendv_ps(none, x.a, _mm256_castsi256_ps(_mm256_cmpgt_epi32(kept, low))),
            _mm256_blendv_ps(none, x.b, _mm256_castsi256_ps(_mm256_cmpgt_epi32(kept, high)))};
}
inline F16 only(F16 x, Lanes set) {
    const __m256i bits = _mm256_set1_epi32(set), none = _mm256_castps_si256(_mm256_set1_ps(LOWEST));
    const __m256i low = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), high = _mm256_slli_epi32(low, 8);
    const auto half = [&](__m256 part, __m256i lanes) {
        const __m256i hit = _mm256_cmpeq_epi32(_mm256_and_si256(bits, lanes), lanes);
        return _mm256_castsi256_ps(_mm256_blendv_epi8(none, _mm256_castps_si256(part), hit));
    };
    return {half(x.a, low), half(x.b, high)};
}

struct D16 {
    __m256d v[4];
};

inline D16 nothing() { return {{_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()}}; }
inline D16 add(D16 s, F16 x) {
    return {{_mm256_add_pd(s.v[0], _mm256_cvtps_pd(_mm256_castps256_ps128(x.a))),
             _mm256_add_pd(s.v[1], _mm256_cvtps_pd(_mm256_extractf128_ps(x.a, 1))),
             _mm256_add_pd(s.v[2], _mm256_cvtps_pd(_mm256_castps256_ps128(x.b))),
             _mm256_add_pd(s.v[3], _mm256_cvtps_pd(_mm256_extractf128_ps(x.b, 1)))}};
}
inline D16 add_at_least(D16 s, F16 x, F16 y) {
    return add(s, {_mm256_and_ps(x.a, _mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ)), _mm256_and_ps(x.b, _mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ))});
}
inline void store(double* p, D16 s) {
    for (int i = 0; i < 4; i++) _mm256_storeu_pd(p + 4 * i, s.v[i]);
}
inline F16 load_half(const half* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline __m256 widen_half(const bf16* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline F16 load_bf16(const bf16* p) { return {widen_half(p), widen_half(p + 8)}; }
inline void store_bf16(bf16* p, F16 x) {
    float lanes[LANES];
    store(lanes, x);
    for (int i = 0; i < LANES; i++) p[i] = narrow(lanes[i]);
}

struct Pairs {
    __m256i a, b;
};

inline Pairs load_pairs(const bf16* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16))};
}
inline Pairs same_pair(const bf16* p) {
    int32_t both;
    std::memcpy(&both, p, sizeof both);
    return {_mm256_set1_epi32(both), _mm256_set1_epi32(both)};
}
inline __m256 dot_half(__m256 acc, __m256i a, __m256i b) {
    const __m256i upper = _mm256_set1_epi32(int32_t(0xffff0000u));
    const __m256 odd =
        _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(a, upper)), _mm256_castsi256_ps(_mm256_and_si256(b, upper)), acc);
    return _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16)), odd);
}
inline F16 dot(F16 acc, Pairs a, Pairs b) { return {dot_half(acc.a, a.a, b.a), dot_half(acc.b, a.b, b.b)}; }

#else

// Vectors as GCC and Clang have them on any machine: they choose the instructions.
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));

struct F16 {
    Floats v;
};

inline Floats all(float x) { return Floats{} + x; }
inline Words all_words(uint32_t x) { return Words{} + x; }
inline F16 zero() { return {Floats{}}; }
inline F16 set1(float x) { return {all(x)}; }
inline F16 load(const float* p) {
    F16 out;
    std::memcpy(&out.v, p, sizeof out.v);
    return out;
}
inline void store(float* p, F16 a) { std::memcpy(p, &a.v, sizeof a.v); }
inline F16 add(F16 a, F16 b) { return {a.v + b.v}; }
inline F16 sub(F16 a, F16 b) { return {a.v - b.v}; }
inline F16 mul(F16 a, F16 b) { return {a.v * b.v}; }
inline F16 div(F16 a, F16 b) { return {a.v / b.v}; }
// A product and a sum, rounded twice: a fused one would be a call into a library here.
inline F16 fma(F16 a, F16 b, F16 c) { return {a.v * b.v + c.v}; }
inline F16 max(F16 a, F16 b) { return {a.v > b.v ? a.v : b.v}; }
inline F16 min(F16 a, F16 b) { return {a.v < b.v ? a.v : b.v}; }
inline Lanes bits_of(Ints hits) {
    unsigned bits = 0;
    for (int i = 0; i < LANES; i++) bits |= (unsigned(hits[i]) & 1u) << i;
    return Lanes(bits);
}
inline Lanes at_least(F16 a, F16 b) { return bits_of(a.v >= b.v); }
inline Lanes not_numbers(F16 a) { return bits_of(a.v != a.v); }
inline F16 round(F16 a) { return {(a.v + 12582912.0f) - 12582912.0f}; }  // 1.5 * 2^23: the sum has no fraction
inline Floats power2(Ints n) { return (Floats)((n + 127) << 23); }
inline F16 scale2(F16 a, F16 n) {
    const Ints whole = __builtin_convertvector(n.v, Ints), some = whole >> 1;
    return {a.v * power2(some) * power2(whole - some)};
}
inline F16 first(F16 a, int count) {
    const Ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return {lanes < count ? a.v : all(LOWEST)};
}
inline F16 only(F16 a, Lanes set) {
    const Ints lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return {((int32_t(set) >> lanes) & 1) != 0 ? a.v : all(LOWEST)};
}

struct D16 {
    double v[LANES];
};

inline D16 nothing() { return {}; }
inline D16 add(D16 s, F16 x) {
    for (int i = 0; i < LANES; i++) s.v[i] += double(x.v[i]);
    return s;
}
inline D16 add_at_least(D16 s, F16 x, F16 y) { return add(s, {x.v >= y.v ? x.v : Floats{}}); }
inline void store(double* p, D16 s) { std::memcpy(p, s.v, sizeof s.v); }
inline float from_half(half h) {
    const uint32_t sign = uint32_t(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, rest = h & 0x3ffu;
    if (exponent == 31u) return as_float(sign | 0x7f800000u | (rest << 13));
    if (exponent == 0u) return (sign ? -1.0f : 1.0f) * float(rest) * 5.9604644775390625e-8f;  // 2^-24
    return as_float(sign | ((exponent + 112u) << 23) | (rest << 13));
}
inline F16 load_half(const half* p) {
    float lanes[LANES];
    for (int i = 0; i < LANES; i++) lanes[i] = from_half(p[i]);
    return load(lanes);
}
inline F16 load_bf16(const bf16* p) {
    float lanes[LANES];
    for (int i = 0; i < LANES; i++) lanes[i] = widen(p[i]);
    return load(lanes);
}
inline void store_bf16(bf16* p, F16 a) {
    float lanes[LANES];
    store(lanes, a);
    for (int i = 0; i < LANES; i++) p[i] = narrow(lanes[i]);
}

struct Pairs {
    Words v;
};

inline Pairs load_pairs(const bf16* p) {
    Pairs out;
    std::memcpy(&out.v, p, sizeof out.v);
    return out;
}
inline Pairs same_pair(const bf16* p) {
    uint32_t both;
    std::memcpy(&both, p, sizeof both);
    return {all_words(both)};
}
inline F16 dot(F16 acc, Pairs a, Pairs b) {
    const Words upper = all_words(0xffff0000u);
    const Floats odd = (Floats)(a.v & upper) * (Floats)(b.v & upper) + acc.v;
    return {(Floats)(a.v << 16) * (Floats)(b.v << 16) + odd};
}

#endif

// --- What all forms share -------------------------------------------------------------------------------------------

#if !(defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__))
inline F16 load_first(const float* p, int count) {
    if (count >= LANES) return load(p);
    float lanes[LANES];
    for (int i = 0; i < LANES; i++) lanes[i] = i < count ? p[i] : LOWEST;
    return load(lanes);
}

inline void pack_lanes(float* p, F16 a, Lanes set) {
    float lanes[LANES];
    store(lanes, a);
    float packed[LANES] = {};
    for (int i = 0, at = 0; i < LANES; i++) {
        packed[at] = lanes[i];
        at += set >> i & 1;
    }
    std::memcpy(p, packed, sizeof packed);
}
#endif

inline float sum(F16 a) {
    float lanes[LANES];
    store(lanes, a);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

inline double sum(D16 a) {
    double lanes[LANES];
    store(lanes, a);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

inline float largest(F16 a) {
    float lanes[LANES];
    store(lanes, a);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    return lanes[0];
}

inline float smallest(F16 a) { return -largest(sub(zero(), a)); }

// e^x, exactly 1 at 0 and exactly 0 for minus infinity; a NaN stays one. Relative error about 2e-7.
inline F16 exp(F16 x) {
    const F16 bounded = max(set1(-200.0f), x);
    const F16 n = round(mul(bounded, set1(1.44269504088896341f)));
    F16 r = fma(n, set1(-0.693359375f), bounded);
    r = fma(n, set1(2.12194440e-4f), r);
    F16 p = set1(1.9875691500e-4f);
    p = fma(p, r, set1(1.3981999507e-3f));
    p = fma(p, r, set1(8.3334519073e-3f));
    p = fma(p, r, set1(4.1665795894e-2f));
    p = fma(p, r, set1(1.6666665459e-1f));
    p = fma(p, r, set1(5.0000001201e-1f));
    p = fma(p, mul(r, r), add(r, set1(1.0f)));
    return scale2(p, max(n, set1(-250.0f)));
}

inline float exp1(float x) {
    float lanes[LANES];
    store(lanes, exp(set1(x)));
    return lanes[0];
}

}  // namespace phloem
