// Products of a few rows with a packed weight matrix.
//
// Every output element is summed over the columns in their order, in one accumulator (one per group of a quantised weight), whatever the
// number of rows: a row's result has the same bits alone or beside others. Weights lie in blocks of 32 outputs:
//   bf16  [outputs / 32][inputs / 2][32][2]
//   f32   [outputs / 32][inputs][32]
//   int8  [outputs / 32][inputs / 2][32][2], scales half [outputs / 32][inputs / 32][32]
//   int4  [outputs / 32][inputs / 32][4][2][32] of 16 bits that hold four values, scales and offsets half [outputs / 32][inputs / 32][32]:
//         word (q, h, l) of a group holds, from its lowest bits on, the values of output 16h + l / 2 at inputs 8q + 2s + l % 2, s = 0..3.
#pragma once

#include <algorithm>
#include <limits>

#include "abi.h"
#include "board.h"
#include "counts.h"
#include "rows.h"
#include "vec.h"

namespace phloem {

constexpr int BLOCK = 32;     // outputs per block
constexpr int GROUP = 32;     // inputs that share a scale
constexpr int MOST_ROWS = MOST_AT_ONCE;
constexpr int MOST_BLOCKS = 2;           // whose outputs are given to whoever wants them, at once
constexpr size_t LINE_BYTES = 64;
// From so many rows on a core multiplies long enough to miss its weights, which then have to be on their way already (16 rows 31 -> 27 ms on one
// core); with fewer it only waits for them, and what fetches them by itself does that better (4 rows would take 16 ms, not 13).
constexpr int AHEAD_FROM = 6;
constexpr int AHEAD = 2;  // the block after the next
constexpr size_t AHEAD_BYTES = 128 << 10;  // of the largest block that is fetched while others are used: two of them must not fill the cache

// Accumulators of R rows by one block.
template <int R>
struct Sums {
    F16 at[R][2];

    inline void clear() {
        for (int r = 0; r < R; r++) at[r][0] = at[r][1] = zero();
    }

    inline void put(float* out, int out_stride) const {
        for (int r = 0; r < R; r++)
            for (int h = 0; h < 2; h++) store(out + size_t(r) * out_stride + h * LANES, at[r][h]);
    }
};

// What a thread fetches into its cache while it multiplies something else: `lines` cache lines (0, 1 or 2) with each pair of inputs.
struct Ahead {
    const char* from;
    int lines;
};

// `x` bf16 [R][stride], `weights` of one block.
template <int R>
inline void product_bf16(Sums<R>& sums, const bf16* weights, const bf16* x, int stride, int inputs, Ahead ahead) {
    const char* from = ahead.from;
    const int lines = ahead.lines;  // not in the struct: the compiler would keep the sums in memory beside it, which takes twice as long
    const Rows<R, bf16> rows(x, stride);
    for (int k = 0; k < inputs; k += 2, weights += 2 * BLOCK) {
        if constexpr (R >= AHEAD_FROM) {
            if (lines > 0) __builtin_prefetch(from, 0, 2);
            if (lines > 1) __builtin_prefetch(from + LINE_BYTES, 0, 2);
            from += lines * LINE_BYTES;
        }
        const Pairs low = load_pairs(weights), high = load_pairs(weights + BLOCK);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            const Pairs mine = same_pair(rows[r] + k);
            sums.at[r][0] = dot(sums.at[r][0], low, mine);
            sums.at[r][1] = dot(sums.at[r][1], high, mine);
        }
    }
}

template <int R>
inline void product_f32(Sums<R>& sums, const float* weights, const float* x, int stride, int inputs) {
    const Rows<R, float> rows(x, stride);
    for (int k = 0; k < inputs; k++, weights += BLOCK) {
        const F16 low = load(weights), high = load(weights + LANES);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            const F16 mine = set1(rows[r][k]);
            sums.at[r][0] = fma(low, mine, sums.at[r][0]);
            sums.at[r][1] = fma(high, mine, sums.at[r][1]);
        }
    }
}

// --- Quantised weights: whole numbers as bf16, which holds them exactly, then one scale per group ----------------------

// Sixteen int8 pairs.
inline Pairs pairs_of_int8(const int8_t* p) {
#if defined(PHLOEM_BF16_DOT)
    const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16))));
    return {(__m512i)_mm512_cvtne2ps_pbh(high, low)};
#else
    bf16 wide[2 * LANES];
    for (int i = 0; i < 2 * LANES; i++) wide[i] = bf16(as_bits(float(p[i])) >> 16);
    return load_pairs(wide);
#endif
}

// The `step`-th of the four values in each of 32 words.
inline Pairs pairs_of_int4(const uint16_t* p, int step) {
#if defined(PHLOEM_BF16_DOT)
    // The table is there twice, since bit 4 of an index is the next value's.
    alignas(64) static const uint16_t values[32] = {
        0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170,
        0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170,
    };
    const __m512i words = _mm512_srl_epi16(_mm512_loadu_si512(p), _mm_cvtsi32_si128(4 * step));
    return {_mm512_permutexvar_epi16(words, _mm512_load_si512(values))};
#else
    bf16 wide[2 * LANES];
    for (int i = 0; i < 2 * LANES; i++) wide[i] = bf16(as_bits(float((p[i] >> (4 * step)) & 15)) >> 16);
    return load_pairs(wide);
#endif
}

// How a group of a block becomes pairs: `pairs(k, ...)` gives both halves of its k-th pair of inputs. `fetched_from`: rows from which groups are
// asked for before their turn.
struct Int8Group {
    const int8_t* at;
    static constexpr int fetched_from = AHEAD_FROM;
    static constexpr size_t size = GROUP * BLOCK;
    inline void pairs(int k, Pairs& low, Pairs& high) const {
        low = pairs_of_int8(at + size_t(k) * 2 * BLOCK);
        high = pairs_of_int8(at + size_t(k) * 2 * BLOCK + BLOCK);
    }
};

struct Int4Group {
    const uint8_t* at;
    static constexpr int fetched_from = 1;
    static constexpr size_t size = GROUP * BLOCK / 2;
    inline void pairs(int k, Pairs& low, Pairs& high) const {
        const uint16_t* words = reinterpret_cast<const uint16_t*>(at) + size_t(k / 4) * 2 * BLOCK;
        low = pairs_of_int4(words, k % 4);
        high = pairs_of_int4(words + BLOCK, k % 4);
    }
};

struct WidenedGroup {
    const bf16* at;
    static constexpr int fetched_from = MOST_ROWS + 1;  // it was just made
    inline void pairs(int k, Pairs& low, Pairs& high) const {
        low = load_pairs(at + size_t(k) * 2 * BLOCK);
        high = load_pairs(at + size_t(k) * 2 * BLOCK + BLOCK);
    }
};

// One group of inputs of one block: its product, scaled, on top of `sums`. `totals` are the sums of each row's inputs in the group, needed where
// there are offsets.
template <int R, class Group>
inline void product_group(
    Sums<R>& sums, const Group& group, const half* scales, const half* offsets, const Rows<R, bf16>& rows, int first, const float* totals,
    int totals_stride) {
    Sums<R> part;
    part.clear();
#pragma GCC unroll 16
    for (int k = 0; k < GROUP / 2; k++) {
        Pairs low, high;
        group.pairs(k, low, high);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            const Pairs mine = same_pair(rows[r] + first + 2 * k);
            part.at[r][0] = dot(part.at[r][0], low, mine);
            part.at[r][1] = dot(part.at[r][1], high, mine);
        }
    }
    for (int h = 0; h < 2; h++) {
        const F16 scale = load_half(scales + h * LANES);
        const F16 offset = offsets == nullptr ? zero() : load_half(offsets + h * LANES);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            const F16 sum = fma(part.at[r][h], scale, sums.at[r][h]);
            sums.at[r][h] = offsets == nullptr ? sum : fma(set1(totals[size_t(r) * totals_stride]), offset, sum);
        }
    }
}

// --- One block, some rows: `out` f32 [R][out_stride], of which 32 columns are set --------------------------------------

// What to fetch during tile `tile` of `tiles`: block `block`, all of it in one tile or half in each of the first two.
inline Ahead ahead_of(const PhloemLinear& w, int block, int tile, int tiles) {
    const size_t bytes = size_t(BLOCK) * w.inputs * sizeof(bf16);
    if (bytes > AHEAD_BYTES || tile > 1 || block < 0 || block >= w.blocks) return {nullptr, 0};
    const char* from = static_cast<const char*>(w.weights) + bytes * size_t(block);
    return {from + tile * (bytes / 2), tiles == 1 ? 2 : 1};
}

// The inputs of a product, and what of them its kind of weight needs.
struct Inputs {
    const void* rows;     // bf16 or f32 [T][stride]
    int stride;
    const float* totals;  // [T][stride / 32], or null
};

template <int R>
void block_plain(const PhloemLinear& w, int block, const Inputs& x, int row, float* out, int out_stride, Ahead ahead) {
    Sums<R> sums;
    sums.clear();
    const size_t at = size_t(block) * BLOCK * w.inputs, from = size_t(row) * x.stride;
    if (w.kind == PHLOEM_F32)
        product_f32<R>(sums, static_cast<const float*>(w.weights) + at, static_cast<const float*>(x.rows) + from, x.stride, w.inputs);
    else
        product_bf16<R>(sums, static_cast<const bf16*>(w.weights) + at, static_cast<const bf16*>(x.rows) + from, x.stride, w.inputs, ahead);
    sums.put(out, out_stride);
}

// Few bytes keep a core busy for long, and what fetches them by itself does not look so far ahead (int4: one row 38 -> 25 ns a group, eight rows
// 100 -> 88). With few rows a core misses int8 as it misses bf16, and asking only takes time.
constexpr int GROUPS_AHEAD = 8;

// Not a call: the compiler drops calls of what only fetches, since they have no effect that it knows of.
[[gnu::always_inline]] inline void fetch_lines(const void* from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += LINE_BYTES) __builtin_prefetch(static_cast<const char*>(from) + at);
}

template <int R, class Group, class At>
void block_grouped(const PhloemLinear& w, int block, const Inputs& x, int row, float* out, int out_stride, At group_at) {
    Sums<R> sums;
    sums.clear();
    const int groups = w.inputs / GROUP, totals_stride = x.stride / GROUP;
    const half* scales = w.scales + size_t(block) * groups * BLOCK;
    const half* offsets = w.offsets == nullptr ? nullptr : w.offsets + size_t(block) * groups * BLOCK;
    const float* totals = x.totals == nullptr ? nullptr : x.totals + size_t(row) * totals_stride;
    const Rows<R, bf16> rows(static_cast<const bf16*>(x.rows) + size_t(row) * x.stride, x.stride);
    for (int g = 0; g < groups; g++) {
        if constexpr (R >= Group::fetched_from) {
            const size_t next = size_t(g + GROUPS_AHEAD) * BLOCK;
            fetch_lines(group_at(g + GROUPS_AHEAD), Group::size);
            fetch_lines(scales + next, BLOCK * sizeof(half));
            if (offsets != nullptr) fetch_lines(offsets + next, BLOCK * sizeof(half));
        }
        product_group<R>(
            sums, Group{group_at(g)}, scales + size_t(g) * BLOCK, offsets == nullptr ? nullptr : offsets + size_t(g) * BLOCK, rows, g * GROUP,
            totals == nullptr ? nullptr : totals + g, totals_stride);
    }
    sums.put(out, out_stride);
}

// A block of a quantised weight as bf16 [inputs / 2][32][2], for the many rows that follow.
inline void widen_block(const PhloemLinear& w, int block, bf16* out) {
    for (int g = 0; g < w.inputs / GROUP; g++)
        for (int k = 0; k < GROUP / 2; k++) {
            Pairs low, high;
            if (w.kind == PHLOEM_INT8)
                Int8Group{static_cast<const int8_t*>(w.weights) + (size_t(block) * (w.inputs / GROUP) + g) * Int8Group::size}.pairs(k, low, high);
            else
                Int4Group{static_cast<const uint8_t*>(w.weights) + (size_t(block) * (w.inputs / GROUP) + g) * Int4Group::size}.pairs(k, low, high);
            bf16* to = out + (size_t(g) * GROUP / 2 + k) * 2 * BLOCK;
            std::memcpy(to, &low, sizeof low);
            std::memcpy(to + BLOCK, &high, sizeof high);
        }
}

template <int R>
void block_quantised(const PhloemLinear& w, int block, const bf16* widened, const Inputs& x, int row, float* out, int out_stride) {
    const size_t first = size_t(block) * (w.inputs / GROUP);
    if (widened != nullptr)
        block_grouped<R, WidenedGroup>(w, block, x, row, out, out_stride, [&](int g) { return widened + size_t(g) * GROUP * BLOCK; });
    else if (w.kind == PHLOEM_INT8)
        block_grouped<R, Int8Group>(w, block, x, row, out, out_stride, [&](int g) {
            return static_cast<const int8_t*>(w.weights) + (first + g) * Int8Group::size;
        });
    else
        block_grouped<R, Int4Group>(w, block, x, row, out, out_stride, [&](int g) {
            return static_cast<const uint8_t*>(w.weights) + (first + g) * Int4Group::size;
        });
}

constexpr int CHUNK = 240;  // rows whose inputs stay in a core's cache while the blocks of a weight pass by
// Rows from which a quantised block is widened once instead of in every tile. Not where widening is two instructions: what it writes does not fit
// into the nearest cache, and reading that takes longer (16 rows 20.4 -> 16.5 ms without, 256 196 -> 184).
#if defined(PHLOEM_BF16_DOT)
constexpr int WIDEN_FROM = std::numeric_limits<int>::max();
#else
constexpr int WIDEN_FROM = MOST_AT_ONCE + 1;
#endif

// The outputs of blocks [from, to) of a product of `rows` rows, `unit` blocks at a time (2 where gate and up alternate), the last first if
// `backwards`: then those before them are next.
// `done(row, rows, block, out)` takes f32 [rows][MOST_BLOCKS * 32], of which unit * 32 columns are set, from `block` on.
// `scratch`: bf16 [unit * inputs * 32] of the calling thread.
template <class Done>
void multiply_blocks(const PhloemLinear& w, const Inputs& x, int rows, int from, int to, int unit, bool backwards, bf16* scratch, const Done& done) {
    alignas(64) float out[MOST_ROWS][MOST_BLOCKS * BLOCK];
    constexpr int stride = MOST_BLOCKS * BLOCK;
    const bool plain = w.kind == PHLOEM_BF16 || w.kind == PHLOEM_F32;
    for (int begin = 0; begin < rows; begin += CHUNK) {
        const int count = std::min(CHUNK, rows - begin);
        const int tiles = (count + MOST_ROWS - 1) / MOST_ROWS;
        const bool widen = !plain && count >= WIDEN_FROM;
        for (int at = from; at < to; at += unit) {
            const int block = backwards ? to - unit - (at - from) : at;
            for (int sub = 0; sub < (widen ? unit : 0); sub++) widen_block(w, block + sub, scratch + size_t(sub) * w.inputs * BLOCK);
            for (int tile = 0; tile < tiles; tile++) {
                const int row = begin + count * tile / tiles, size = begin + count * (tile + 1) / tiles - row;
                with_count(size, [&]<int R>() {
                    for (int sub = 0; sub < unit; sub++) {
                        float* here = out[0] + sub * BLOCK;
                        if (plain)
                            block_plain<R>(w, block + sub, x, row, here, stride, ahead_of(w, block + sub + (backwards ? -AHEAD : AHEAD), tile, tiles));
                        else
                            block_quantised<R>(w, block + sub, widen ? scratch + size_t(sub) * w.inputs * BLOCK : nullptr, x, row, here, stride);
                    }
                });
                done(row, size, block, out[0]);
            }
        }
    }
}

// Part `part` of `parts` of the outputs of a product.
template <class Done>
void multiply(const PhloemLinear& w, const Inputs& x, int rows, int part, int parts, int unit, bf16* scratch, const Done& done) {
    const int64_t units = w.blocks / unit;
    multiply_blocks(w, x, rows, int(units * part / parts) * unit, int(units * (part + 1) / parts) * unit, unit, false, scratch, done);
}

// A product as tasks of `units` times `unit` blocks each, done by the caller and whoever helps, who takes the last first. `scratch(thread)` as above.
template <class Done, class Scratch>
void multiply_together(Board& board, const PhloemLinear& w, const Inputs& x, int rows, int unit, int units, const Scratch& scratch, const Done& done) {
    const int each = unit * units, tasks = (w.blocks + each - 1) / each;
    const auto blocks = [=, &w](int task, int thread, const auto& take) {
        multiply_blocks(w, x, rows, task * each, std::min(w.blocks, (task + 1) * each), unit, thread > 0, scratch(thread), take);
    };
    const auto place = [=](float* room, int task, int block, int row) {
        return room + (size_t(block - task * each) / unit * rows + row) * MOST_BLOCKS * BLOCK;
    };
    board.run(
        tasks, [&](int task) { blocks(task, 0, done); },
        [=](int task, int thread, float* room) {
            blocks(task, thread, [&](int row, int some, int block, const float* out) {
                std::copy(out, out + size_t(some) * MOST_BLOCKS * BLOCK, place(room, task, block, row));
            });
        },
        [=, &w](int task, float* room) {
            for (int block = task * each; block < std::min(w.blocks, (task + 1) * each); block += unit) done(0, rows, block, place(room, task, block, 0));
        });
}

}  // namespace phloem
