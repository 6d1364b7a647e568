// The value at a rank: the k-th largest of many, or the one at which the sum of the largest reaches a share. Without sorting them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "vec.h"

namespace phloem {

constexpr int WAYS = 8;      // bounds that a pass tries at once
constexpr size_t FEW = 64;   // so many are sorted

// Whole numbers in the order of the floats; both zeros are one.
inline uint32_t ordered(float x) {
    const uint32_t bits = as_bits(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
inline float of_ordered(uint32_t key) { return as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

// What the values no smaller than each of the bounds amount to: how many they are.
struct Count {
    int64_t totals[WAYS] = {};

    void take(int way, F16 x, F16 bound) { totals[way] += std::popcount(at_least(x, bound)); }
    double total(int way) const { return double(totals[way]); }
    static double of(float) { return 1.0; }
};

// As `Count`: their sum. They are not negative.
struct Mass {
    D16 totals[WAYS];

    Mass() {
        for (D16& each : totals) each = nothing();
    }
    void take(int way, F16 x, F16 bound) { totals[way] = add_at_least(totals[way], x, bound); }
    double total(int way) const { return sum(totals[way]); }
    static double of(float x) { return double(x); }
};

// The smallest and the largest of `count` values, at least one, none of them NaN.
struct Span {
    float least, most;

    Span(const float* values, size_t count) {
        F16 low = set1(values[0]), high = low;
        size_t i = 0;
        for (; i + LANES <= count; i += LANES) {
            const F16 x = load(values + i);
            low = min(low, x);
            high = max(high, x);
        }
        least = smallest(low);
        most = largest(high);
        for (; i < count; i++) {
            least = std::min(least, values[i]);
            most = std::max(most, values[i]);
        }
    }
};

template <class Measure>
Measure measured(const float* values, size_t count, const float* bounds) {
    Measure measure;
    F16 at[WAYS];
    for (int way = 0; way < WAYS; way++) at[way] = set1(bounds[way]);
    for (size_t i = 0; i < count; i += LANES) {
        const F16 x = load_first(values + i, int(std::min(count - i, size_t(LANES))));
#pragma GCC unroll 8
        for (int way = 0; way < WAYS; way++) measure.take(way, x, at[way]);
    }
    return measure;
}

// Writes the values in [from, to) to `out`, which may be where they are; up to LANES beyond the last are overwritten. Returns how many.
inline size_t collect(const float* values, size_t count, float from, float to, float* out) {
    size_t found = 0;
    for (size_t i = 0; i < count; i += LANES) {
        const int here = int(std::min(count - i, size_t(LANES)));
        const F16 x = load_first(values + i, here);
        const Lanes inside = Lanes(at_least(x, set1(from)) & ~at_least(x, set1(to)) & (0xffffu >> (LANES - here)));
        pack_lanes(out + found, x, inside);
        found += size_t(std::popcount(inside));
    }
    return found;
}

// The largest value v of `count` such that those no smaller than v amount to `needed`; the smallest of all if they never do.
// Values that are equal count together, so no order among them matters. `room`: count + LANES floats, and may be where the values are.
template <class Measure>
float reaching(const float* values, size_t count, double needed, float* room) {
    double above = 0.0;  // what all larger than those looked at amount to
    while (count > FEW) {
        const Span span(values, count);
        const uint32_t low = ordered(span.least), width = ordered(span.most) - low;
        if (width == 0) return span.least;
        float bounds[WAYS + 2];  // ascending
        for (uint32_t way = 0; way < WAYS + 2; way++) bounds[way] = of_ordered(low + uint32_t((uint64_t(width) + 1) * way / (WAYS + 1)));
        const Measure measure = measured<Measure>(values, count, bounds + 1);
        int way = WAYS;
        while (way > 0 && above + measure.total(way - 1) < needed) way--;
        if (way < WAYS) above += measure.total(way);
        count = collect(values, count, bounds[way], bounds[way + 1], room);
        values = room;
    }
    if (values != room) std::copy(values, values + count, room);
    std::sort(room, room + count, std::greater<float>());
    for (size_t i = 0; i < count; i++)
        if ((above += Measure::of(room[i])) >= needed) return room[i];
    return room[count - 1];
}

}  // namespace phloem
