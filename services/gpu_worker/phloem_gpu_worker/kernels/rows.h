// Where the rows of a tile are.
#pragma once

#include <cstddef>

namespace phloem {

// A value that the compiler knows nothing of.
template <class T>
inline T opaque(T value) {
    asm volatile("" : "+r"(value));
    return value;
}

// Where R rows are: a pointer for each three and a stride, which an address may hold once or twice. Left alone, the compiler keeps an offset for
// each row, which are more than there are registers, and fetches some anew with each pair of inputs (12 rows take 7 % longer).
template <int R, class E>
struct Rows {
    const E* at[(R + 2) / 3];
    size_t stride;

    Rows(const E* x, int step) : stride(opaque(size_t(step))) {
        for (int i = 0; i < (R + 2) / 3; i++) at[i] = opaque(x + size_t(3 * i) * size_t(step));
    }

    inline const E* operator[](int r) const { return at[r / 3] + size_t(r % 3) * stride; }
};

}  // namespace phloem
