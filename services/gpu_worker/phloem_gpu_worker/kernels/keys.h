// Keyed random numbers: those of keys.py.
#pragma once

#include <cmath>
#include <cstdint>

namespace phloem {

// SplitMix64's finaliser (Steele, Lea and Flood 2014).
inline uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

// Exponential variates of one draw: mean 1, never 0.
class Waits {
public:
    Waits(uint64_t seed, int64_t child, int64_t position) {
        const uint64_t seeded = mixed(seed + STEP);
        const uint64_t born = mixed(seeded ^ (uint64_t(child) * 0xD1B54A32D192ED03u));
        state_ = mixed(born + uint64_t(position) * STEP);
    }

    double operator[](uint64_t index) const {
        return -std::log((double(mixed(state_ + (index + 1) * STEP) >> 12) + 0.5) * 0x1p-52);
    }

private:
    static constexpr uint64_t STEP = 0x9E3779B97F4A7C15u;
    uint64_t state_;
};

}  // namespace phloem
