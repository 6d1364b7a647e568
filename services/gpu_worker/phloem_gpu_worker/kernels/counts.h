// From a number known at run time to one known when compiling.
#pragma once

#include "vec.h"

namespace phloem {

// Rows or queries whose accumulators, two vectors each, fit into the registers.
#if defined(__AVX512F__)
constexpr int MOST_AT_ONCE = 12;
#elif defined(__AVX2__)
constexpr int MOST_AT_ONCE = 4;
#else
constexpr int MOST_AT_ONCE = 2;
#endif

// Calls f.template operator()<N>() for the N that equals `count`, 1 to MOST_AT_ONCE.
template <int N = 1, class F>
inline void with_count(int count, const F& f) {
    if constexpr (N == MOST_AT_ONCE)
        f.template operator()<N>();
    else if (count == N)
        f.template operator()<N>();
    else
        with_count<N + 1>(count, f);
}

}  // namespace phloem
