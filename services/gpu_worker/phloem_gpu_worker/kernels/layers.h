// What lies between products and attention: norms, rotary positions, the gated activation. Each row by itself.
#pragma once

#include <cmath>

#include "abi.h"
#include "attention.h"
#include "matmul.h"
#include "vec.h"

namespace phloem {

// 1 / sqrt(mean of squares + epsilon) of `size` floats; lanes beyond a multiple of 16 are added one by one.
inline float inverse_rms(const float* x, int size, float epsilon) {
    F16 squares = zero();
    int i = 0;
    for (; i + LANES <= size; i += LANES) squares = fma(load(x + i), load(x + i), squares);
    float total = sum(squares);
    for (; i < size; i++) total += x[i] * x[i];
    return 1.0f / std::sqrt(total / float(size) + epsilon);
}

// RMSNorm (Zhang and Sennrich 2019) of a row to activations.
template <class E>
void normalise(const float* x, const float* weight, int size, float epsilon, E* out) {
    const float factor = inverse_rms(x, size, epsilon);
    int i = 0;
    for (; i + LANES <= size; i += LANES) Kind<E>::put(out + i, mul(mul(load(x + i), set1(factor)), load(weight + i)));
    for (; i < size; i++) out[i] = Kind<E>::from(x[i] * factor * weight[i]);
}

// Sums over groups of 32, as a weight with offsets wants them.
inline void group_totals(const bf16* x, int size, float* out) {
    for (int g = 0; g < size / GROUP; g++) out[g] = sum(add(load_bf16(x + g * GROUP), load_bf16(x + g * GROUP + LANES)));
}

// silu(gate) * up
inline F16 gated(F16 gate, F16 up) {
    const F16 one = set1(1.0f);
    return mul(div(gate, add(one, exp(sub(zero(), gate)))), up);
}

// Rotates the pair of dimensions (i, i + half) by the angle i (Su et al. 2021, in the halves form of Hugging Face's models).
inline void rotate(float* head, const float* cosines, const float* sines, int half_size) {
    for (int i = 0; i < half_size; i++) {
        const float a = head[i], b = head[i + half_size];
        head[i] = a * cosines[i] - b * sines[i];
        head[i + half_size] = b * cosines[i] + a * sines[i];
    }
}

template <class E>
void store_head(const Shape& s, const PhloemLayer& layer, const int64_t* table, int64_t position, int kv, const float* k, const float* v) {
    const size_t base = s.page_at(kv, table, position);
    const int offset = int(position % s.page_size);
    E* keys = static_cast<E*>(layer.keys) + base;
    E* values = static_cast<E*>(layer.values) + base;
    for (int d = 0; d < s.head_dim; d++) {
        keys[key_index<E>(s, offset, d)] = Kind<E>::from(k[d]);
        values[value_index<E>(s, offset, d)] = Kind<E>::from(v[d]);
    }
}

}  // namespace phloem
