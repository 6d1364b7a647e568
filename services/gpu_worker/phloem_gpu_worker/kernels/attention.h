// Attention of ragged rows over the paged pool, in place.
//
// A row's positions are cut into blocks of 256, counted from position 0. Each block's share is computed by itself (its maximum, its sum of
// exponentials, its weighted values), and shares are merged in the order of the blocks. So neither the other rows of a batch, nor how a
// prompt was cut into chunks, nor which thread took what changes a bit of a result. (Merging of partial softmaxes: Milakov and
// Gimelshein 2018, "Online normalizer calculation for softmax".)
//
// The pool of a layer: keys [kv_heads][pages][head_dim / P][page_size][P], values [kv_heads][pages][page_size / P][head_dim][P]; P = 2 for bf16
// (1 where a page is one token), 1 for f32. Sixteen tokens of a page are so one vector for each (pair of) dimension(s), and pages with adjacent
// numbers, which rows have where they can, are one stream of a head.
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "abi.h"
#include "board.h"
#include "counts.h"
#include "rows.h"
#include "team.h"
#include "vec.h"

namespace phloem {

constexpr int SPAN = 256;        // positions per block
constexpr int TILE = LANES;      // tokens per vector
constexpr int MOST_QUERIES = MOST_AT_ONCE;
constexpr int PIECE = 2;         // blocks of one task

struct Shape {
    int heads, kv_heads, head_dim, page_size, pages, group;

    explicit Shape(const PhloemModel& m)
        : heads(m.heads), kv_heads(m.kv_heads), head_dim(m.head_dim), page_size(m.page_size), pages(m.pages), group(m.heads / m.kv_heads) {}

    // Where a head's share of the page of a position begins among the keys, or the values, of a layer.
    size_t page_at(int kv, const int64_t* table, int64_t position) const {
        return (size_t(kv) * size_t(pages) + size_t(table[position / page_size])) * size_t(head_dim) * size_t(page_size);
    }
    int share_floats() const { return head_dim + 2; }  // maximum, sum, values
};

// --- Elements ---------------------------------------------------------------------------------------------------------

template <class E>
struct Kind;

template <>
struct Kind<bf16> {
    static constexpr int pair = 2;
    static inline F16 dot_step(F16 acc, const bf16* many, const bf16* one) { return dot(acc, load_pairs(many), same_pair(one)); }
    static inline void put(bf16* to, F16 x) { store_bf16(to, x); }
    static inline bf16 from(float x) { return narrow(x); }
};

template <>
struct Kind<float> {
    static constexpr int pair = 1;
    static inline F16 dot_step(F16 acc, const float* many, const float* one) { return fma(load(many), set1(*one), acc); }
    static inline void put(float* to, F16 x) { store(to, x); }
    static inline float from(float x) { return x; }
};

// Index of dimension d of the token at `offset` in its page, among its head's keys, and among its head's values.
template <class E>
inline size_t key_index(const Shape& s, int offset, int d) {
    constexpr int P = Kind<E>::pair;
    return (size_t(d / P) * s.page_size + offset) * P + d % P;
}

template <class E>
inline size_t value_index(const Shape& s, int offset, int d) {
    const int P = s.page_size == 1 ? 1 : Kind<E>::pair;
    return (size_t(offset / P) * s.head_dim + d) * P + offset % P;
}

// --- A block's keys and values, tile by tile -------------------------------------------------------------------------

template <class E>
struct Tiles {
    const E* keys[SPAN / TILE];
    const E* values[SPAN / TILE];
    const E* following[SPAN / TILE];  // keys of the block that comes next, or those above
    size_t key_stride;  // elements from one (pair of) dimension(s) to the next
};

// Sixteen tokens of pages that are smaller than that, in the form of a page of sixteen. `room`: [2][head_dim * 16].
template <class E>
void gather_tile(const Shape& s, const E* keys, const E* values, const int64_t* table, int first, int kv, E* room) {
    Shape whole = s;
    whole.page_size = TILE;
    E* k = room;
    E* v = room + size_t(s.head_dim) * TILE;
    for (int t = 0; t < TILE; t++) {
        const int position = first + t, offset = position % s.page_size;
        const size_t base = s.page_at(kv, table, position);
        for (int d = 0; d < s.head_dim; d++) {
            k[key_index<E>(whole, t, d)] = keys[base + key_index<E>(s, offset, d)];
            v[value_index<E>(whole, t, d)] = values[base + value_index<E>(s, offset, d)];
        }
    }
}

// The tiles of `tokens` positions from `first` (a multiple of 256) on. `room`: [16][2][head_dim * 16], used by small pages only.
template <class E>
void find_tiles(const Shape& s, const PhloemLayer& layer, const int64_t* table, int width, int first, int tokens, int kv, E* room, Tiles<E>& tiles) {
    const E* keys = static_cast<const E*>(layer.keys);
    const E* values = static_cast<const E*>(layer.values);
    tiles.key_stride = size_t(std::max(s.page_size, TILE)) * Kind<E>::pair;
    std::fill(std::begin(tiles.following), std::end(tiles.following), keys);
    for (int tile = 0; tile * TILE < tokens; tile++) {
        const int position = first + tile * TILE;
        if (s.page_size >= TILE) {
            const int offset = position % s.page_size;
            const size_t base = s.page_at(kv, table, position);
            tiles.keys[tile] = keys + base + size_t(offset) * Kind<E>::pair;
            tiles.values[tile] = values + base + size_t(offset) * s.head_dim;
            continue;
        }
        // The last tile's table may end early: what lies beyond the row is masked, so any page will do.
        int64_t pages[TILE];
        const int per_tile = TILE / s.page_size, page = position / s.page_size;
        for (int i = 0; i < per_tile; i++) pages[i] = table[std::min(page + i, width - 1)];
        E* here = room + size_t(tile) * 2 * s.head_dim * TILE;
        gather_tile(s, keys, values, pages, 0, kv, here);
        tiles.keys[tile] = here;
        tiles.values[tile] = here + size_t(s.head_dim) * TILE;
    }
}

// Names the keys of the block from `first` on that comes after the one in `tiles`.
template <class E>
void find_following(const Shape& s, const PhloemLayer& layer, const int64_t* table, int width, int first, int kv, Tiles<E>& tiles) {
    for (int tile = 0; tile < SPAN / TILE; tile++) {
        const int position = first + tile * TILE;
        if (position >= width * s.page_size) return;
        tiles.following[tile] = static_cast<const E*>(layer.keys) + s.page_at(kv, table, position) + size_t(position % s.page_size) * Kind<E>::pair;
    }
}

// --- One block for up to twelve queries ------------------------------------------------------------------------------
//
// Pages lie anywhere, so no CPU sees by itself which comes next, and few queries use a page up faster than it comes. So memory is kept busy all
// the time: a block's values are fetched while its scores are computed, the keys of the block that follows while its values are added up (16 rows
// of 1,000 tokens 50 -> 43 ms on one core, 74 -> 55 if their pages lie scattered).

// Up to twelve queries: their vectors, one after the other, and how many positions each sees.
template <class E>
struct Queries {
    E* vectors;  // [][head_dim]
    int visible[MOST_QUERIES];

    void put(int i, const E* vector, int head_dim, int sees) {
        std::copy(vector, vector + head_dim, vectors + size_t(i) * head_dim);
        visible[i] = sees;
    }
};

template <class E, int M>
struct Room {
    alignas(64) float scores[M][SPAN];
    alignas(64) E weights[M][SPAN];
};

template <class E, int M>
inline void block_scores(const Shape& s, const Tiles<E>& tiles, const Queries<E>& queries, int first, int count, Room<E, M>& room) {
    constexpr int P = Kind<E>::pair;
    const Rows<M, E> q(queries.vectors, s.head_dim);
    for (int tile = 0; tile < count; tile++) {
        F16 acc[M];
        for (int m = 0; m < M; m++) acc[m] = zero();
        const E* keys = tiles.keys[tile];
        const E* values = tiles.values[tile];
        for (int d = 0; d < s.head_dim; d += P, keys += tiles.key_stride) {
            __builtin_prefetch(values, 0, 2);
            values += TILE * P;
#pragma GCC unroll 12
            for (int m = 0; m < M; m++) acc[m] = Kind<E>::dot_step(acc[m], keys, q[m] + d);
        }
        for (int m = 0; m < M; m++) {
            const int seen = queries.visible[m] - first - tile * TILE;
            store(&room.scores[m][tile * TILE], seen >= TILE ? acc[m] : phloem::first(acc[m], std::max(seen, 0)));
        }
    }
}

// Scores to weights; the block's maximum and sum into shares[m][0] and [1].
template <class E, int M>
inline void block_weights(int count, float scale, Room<E, M>& room, float* const* shares) {
    for (int m = 0; m < M; m++) {
        F16 top = load(room.scores[m]);
        for (int tile = 1; tile < count; tile++) top = max(top, load(&room.scores[m][tile * TILE]));
        const float most = largest(top) * scale;
        F16 total = zero();
        const F16 factor = set1(scale), shift = set1(-most);
        for (int tile = 0; tile < count; tile++) {
            const F16 e = exp(fma(load(&room.scores[m][tile * TILE]), factor, shift));
            total = add(total, e);
            Kind<E>::put(&room.weights[m][tile * TILE], e);
        }
        shares[m][0] = most;
        shares[m][1] = sum(total);
    }
}

// Columns [column, column + C * 16) of the weighted values into shares[m][2 + column ...].
template <class E, int M, int C>
inline void block_values(const Shape& s, const Tiles<E>& tiles, int column, int count, const Room<E, M>& room, float* const* shares) {
    constexpr int P = Kind<E>::pair;
    F16 acc[M][C];
    for (int m = 0; m < M; m++)
        for (int c = 0; c < C; c++) acc[m][c] = zero();
    for (int tile = 0; tile < count; tile++) {
        const E* values = tiles.values[tile] + size_t(column) * P;
        const E* following = tiles.following[tile] + size_t(column / LANES) * (TILE / P) * tiles.key_stride;
        for (int t = 0; t < TILE; t += P, values += size_t(s.head_dim) * P) {
            for (int c = 0; c < C; c++, following += tiles.key_stride) __builtin_prefetch(following, 0, 2);
#pragma GCC unroll 12
            for (int m = 0; m < M; m++)
#pragma GCC unroll 2
                for (int c = 0; c < C; c++)
                    acc[m][c] = Kind<E>::dot_step(acc[m][c], values + c * LANES * P, &room.weights[m][tile * TILE + t]);
        }
    }
    for (int m = 0; m < M; m++)
        for (int c = 0; c < C; c++) store(shares[m] + 2 + column + c * LANES, acc[m][c]);
}

// The share of `tokens` positions from `first` on (one block) for M queries, each of which sees at least one of them.
template <class E, int M>
void block_share(const Shape& s, const Tiles<E>& tiles, const Queries<E>& queries, int first, int tokens, float scale, float* const* shares) {
    Room<E, M> room;
    const int count = (tokens + TILE - 1) / TILE;
    block_scores<E, M>(s, tiles, queries, first, count, room);
    block_weights<E, M>(count, scale, room, shares);
    int column = 0;
    for (; column + 2 * LANES <= s.head_dim; column += 2 * LANES) block_values<E, M, 2>(s, tiles, column, count, room, shares);
    if (column < s.head_dim) block_values<E, M, 1>(s, tiles, column, count, room, shares);
}

// `state` (maximum, sum, values) joined by the share of the block that follows.
inline void merge(float* state, const float* share, int head_dim) {
    const float top = std::max(state[0], share[0]);
    const float kept = exp1(state[0] - top), added = exp1(share[0] - top);
    state[0] = top;
    state[1] = state[1] * kept + share[1] * added;
    for (int d = 0; d < head_dim; d += LANES)
        store(state + 2 + d, fma(load(share + 2 + d), set1(added), mul(load(state + 2 + d), set1(kept))));
}

template <class E>
void finish(const float* state, int head_dim, E* out) {
    const F16 total = set1(state[1]);
    for (int d = 0; d < head_dim; d += LANES) Kind<E>::put(out + d, div(load(state + 2 + d), total));
}

// --- Tasks -------------------------------------------------------------------------------------------------------------

// Some blocks for some queries of one KV head. Of a row of several tokens: consecutive tokens of it, all their blocks. Of rows of one token:
// rows that share the pages of these blocks.
struct Task {
    int kv, first_block, last_block;  // one past the last
    int items_from, items_to;         // queries, in the order of `Plan::order` and, within a token, of heads
    int row;                          // whose page table is read
    bool single;                      // shares are kept for `Plan` to merge
};

struct Plan {
    std::vector<Task> tasks;
    std::vector<int> order;       // rows of one token, those that share pages side by side
    std::vector<int> token_of;    // [row] its first token
    std::vector<int64_t> shares;  // [row] where its shares begin, in units of shares of one head and block
    int64_t share_count = 0;
};

inline int blocks_of(int64_t tokens) { return int((tokens + SPAN - 1) / SPAN); }

// Cuts `items` queries into tiles of nearly equal size, each no larger than MOST_QUERIES.
template <class F>
inline void tiles_of(int from, int to, const F& f) {
    const int items = to - from, tiles = (items + MOST_QUERIES - 1) / MOST_QUERIES;
    for (int i = 0; i < tiles; i++) f(from + int(int64_t(items) * i / tiles), from + int(int64_t(items) * (i + 1) / tiles));
}

class Planner {
public:
    Planner(const Shape& shape, const PhloemBatch& batch, Plan& plan) : s_(shape), b_(batch), p_(plan) {}

    void run() {
        p_.tasks.clear();
        p_.order.clear();
        p_.token_of.resize(size_t(b_.row_count));
        p_.shares.resize(size_t(b_.row_count));
        p_.share_count = 0;
        int token = 0;
        for (int row = 0; row < b_.row_count; row++) {
            p_.token_of[row] = token;
            token += int(b_.counts[row]);
            if (b_.counts[row] > 1) {
                extend(row);
                continue;
            }
            p_.shares[row] = p_.share_count;
            p_.share_count += int64_t(blocks(row)) * s_.heads;
            p_.order.push_back(row);
        }
        std::stable_sort(p_.order.begin(), p_.order.end(), [this](int a, int b) { return before(a, b); });
        if (!p_.order.empty()) share(0, int(p_.order.size()), 0);
    }

private:
    const int64_t* table(int row) const { return b_.tables + size_t(row) * b_.table_width; }
    int blocks(int row) const { return blocks_of(b_.starts[row] + 1); }
    int whole_blocks(int row) const { return int((b_.starts[row] + 1) / SPAN); }
    int64_t pages(int64_t tokens) const { return (tokens + s_.page_size - 1) / s_.page_size; }

    bool before(int a, int b) const {
        const int64_t *x = table(a), *y = table(b);
        const int64_t m = pages(b_.starts[a] + 1), n = pages(b_.starts[b] + 1);
        return std::lexicographical_compare(x, x + m, y, y + n);
    }

    // Whether two rows have the same pages in block `block`, which both fill.
    bool same(int a, int b, int block) const {
        const int64_t from = int64_t(block) * SPAN / s_.page_size, to = pages(int64_t(block + 1) * SPAN);
        return std::equal(table(a) + from, table(a) + to, table(b) + from);
    }

    // Tasks of the rows order[from, to), which have all blocks before `block` in common.
    void share(int from, int to, int block) {
        if (to - from == 1) {
            emit(from, to, block, blocks(p_.order[from]));
            return;
        }
        int end = block;
        while (common(from, to, end)) end++;
        emit(from, to, block, end);
        int begin = from;
        for (int i = from + 1; i <= to; i++) {
            if (i < to && end < whole_blocks(p_.order[begin]) && end < whole_blocks(p_.order[i]) && same(p_.order[begin], p_.order[i], end)) continue;
            if (end < blocks(p_.order[begin]))
                share(begin, i, end);
            begin = i;
        }
    }

    bool common(int from, int to, int block) const {
        for (int i = from; i < to; i++)
            if (block >= whole_blocks(p_.order[i]) || (i > from && !same(p_.order[from], p_.order[i], block))) return false;
        return true;
    }

    void emit(int from, int to, int first, int last) {
        for (; first < last; first += PIECE)
            for (int kv = 0; kv < s_.kv_heads; kv++)
                tiles_of(from * s_.group, to * s_.group, [&](int a, int b) {
                    p_.tasks.push_back({kv, first, std::min(first + PIECE, last), a, b, p_.order[size_t(a / s_.group)], true});
                });
    }

    // A row of several tokens: tiles of consecutive tokens that don't cross a block, so that each query sees a part of every block of its tile.
    void extend(int row) {
        const int64_t start = b_.starts[row], end = start + b_.counts[row];
        for (int64_t from = start; from < end;) {
            const int64_t to = std::min(end, (from / SPAN + 1) * SPAN);
            for (int kv = 0; kv < s_.kv_heads; kv++)
                tiles_of(int(from - start) * s_.group, int(to - start) * s_.group, [&](int a, int b) {
                    p_.tasks.push_back({kv, 0, blocks_of(to), a, b, row, false});
                });
            from = to;
        }
    }

    const Shape& s_;
    const PhloemBatch& b_;
    Plan& p_;
};

// What a thread needs for its tasks.
template <class E>
struct Desk {
    std::vector<E> gathered, vectors;
    std::vector<float> states, shares;

    explicit Desk(const Shape& s)
        : gathered(s.page_size < TILE ? size_t(SPAN / TILE) * 2 * s.head_dim * TILE : 0), vectors(size_t(MOST_QUERIES) * s.head_dim),
          states(size_t(MOST_QUERIES) * s.share_floats()), shares(size_t(MOST_QUERIES) * s.share_floats()) {}
};

template <class E>
void share_of(const Shape& s, const Tiles<E>& tiles, const Queries<E>& queries, int count, int first, int tokens, float scale, float* const* shares) {
    with_count(count, [&]<int M>() { block_share<E, M>(s, tiles, queries, first, tokens, scale, shares); });
}

// Where the share of a block for query `i` of a task of rows of one token is kept, in floats.
inline size_t place_of(const Shape& s, const PhloemBatch& b, const Plan& plan, const Task& task, int i, int block) {
    const int item = task.items_from + i, row = plan.order[size_t(item / s.group)], head = task.kv * s.group + item % s.group;
    return size_t(plan.shares[row] + int64_t(head) * blocks_of(b.starts[row] + 1) + block) * size_t(s.share_floats());
}

// A task of rows of one token: the share of each of its blocks for each query goes to `keep(i, block)`. `then`: the task that comes next, or null.
template <class E, class Keep>
void run_single(
    const Shape& s, const PhloemLayer& layer, const PhloemBatch& b, const Plan& plan, const Task& task, const Task* then, const E* q, float scale,
    const Keep& keep, Desk<E>& desk) {
    const int items = task.items_to - task.items_from;
    Queries<E> queries{desk.vectors.data(), {}};
    float* shares[MOST_QUERIES];
    const int64_t* table = b.tables + size_t(task.row) * b.table_width;
    int longest = 0;
    for (int i = 0; i < items; i++) {
        const int item = task.items_from + i, row = plan.order[size_t(item / s.group)];
        const int head = task.kv * s.group + item % s.group, length = int(b.starts[row]) + 1;
        queries.put(i, q + (size_t(plan.token_of[row]) * s.heads + head) * s.head_dim, s.head_dim, length);
        longest = std::max(longest, length);
    }
    for (int block = task.first_block; block < task.last_block; block++) {
        const int first = block * SPAN, tokens = std::min(SPAN, longest - first);
        Tiles<E> tiles;
        find_tiles(s, layer, table, b.table_width, first, tokens, task.kv, desk.gathered.data(), tiles);
        if (block + 1 < task.last_block)
            find_following(s, layer, table, b.table_width, first + SPAN, task.kv, tiles);
        else if (then != nullptr)
            find_following(s, layer, b.tables + size_t(then->row) * b.table_width, b.table_width, then->first_block * SPAN, then->kv, tiles);
        for (int i = 0; i < items; i++) shares[i] = keep(i, block);
        share_of(s, tiles, queries, items, first, tokens, scale, shares);
    }
}

// Where the result of query `i` of a task of a row of several tokens belongs, in elements; and its vector among the queries.
inline size_t result_of(const Shape& s, const Plan& plan, const Task& task, int i) {
    const int item = task.items_from + i, head = task.kv * s.group + item % s.group;
    return (size_t(plan.token_of[task.row] + item / s.group) * s.heads + head) * s.head_dim;
}

// A task of a row of several tokens: merged at once, and written to `out(i)`.
template <class E, class Out>
void run_extend(const Shape& s, const PhloemLayer& layer, const PhloemBatch& b, const Plan& plan, const Task& task, const E* q, float scale, const Out& out, Desk<E>& desk) {
    const int items = task.items_to - task.items_from;
    Queries<E> queries{desk.vectors.data(), {}};
    float* shares[MOST_QUERIES];
    const int64_t* table = b.tables + size_t(task.row) * b.table_width;
    int longest = 0;
    for (int i = 0; i < items; i++) {
        queries.put(i, q + result_of(s, plan, task, i), s.head_dim, int(b.starts[task.row]) + (task.items_from + i) / s.group + 1);
        longest = std::max(longest, queries.visible[i]);
    }
    for (int block = task.first_block; block < task.last_block; block++) {
        const int first = block * SPAN, tokens = std::min(SPAN, longest - first);
        Tiles<E> tiles;
        find_tiles(s, layer, table, b.table_width, first, tokens, task.kv, desk.gathered.data(), tiles);
        for (int i = 0; i < items; i++) shares[i] = (block == 0 ? desk.states : desk.shares).data() + size_t(i) * s.share_floats();
        share_of(s, tiles, queries, items, first, tokens, scale, shares);
        for (int i = 0; i < (block == 0 ? 0 : items); i++) merge(desk.states.data() + size_t(i) * s.share_floats(), shares[i], s.head_dim);
    }
    for (int i = 0; i < items; i++) finish(desk.states.data() + size_t(i) * s.share_floats(), s.head_dim, out(i));
}

// Merges what the tasks of one-token rows kept, for a part of the rows. The first share is the state.
template <class E>
void merge_singles(const Shape& s, const PhloemBatch& b, const Plan& plan, float* kept, E* out, int part, int parts) {
    const int64_t items = int64_t(plan.order.size()) * s.heads;
    for (int64_t item = items * part / parts; item < items * (part + 1) / parts; item++) {
        const int row = plan.order[size_t(item / s.heads)], head = int(item % s.heads), count = blocks_of(b.starts[row] + 1);
        float* state = kept + size_t(plan.shares[row] + int64_t(head) * count) * s.share_floats();
        for (int block = 1; block < count; block++) merge(state, state + size_t(block) * s.share_floats(), s.head_dim);
        finish(state, s.head_dim, out + (size_t(plan.token_of[row]) * s.heads + head) * s.head_dim);
    }
}

// The attention of a layer: its tasks, and where their results go.
template <class E>
struct Attention {
    const Shape& s;
    const PhloemLayer& layer;
    const PhloemBatch& b;
    const Plan& plan;
    const E* q;
    float* kept;
    E* out;
    float scale = 1.0f / std::sqrt(float(s.head_dim));

    int tasks() const { return int(plan.tasks.size()); }

    float* share(const Task& task, int i, int block) const { return kept + place_of(s, b, plan, task, i, block); }
    E* result(const Task& task, int i) const { return out + result_of(s, plan, task, i); }

    // A helper's room has either at its beginning.
    float* share(float* room, const Task& task, int i, int block) const {
        return room + size_t(i * PIECE + block - task.first_block) * size_t(s.share_floats());
    }
    E* result(float* room, int i) const { return reinterpret_cast<E*>(room) + size_t(i) * s.head_dim; }

    const Task* task_at(int number) const { return number >= 0 && number < tasks() ? &plan.tasks[size_t(number)] : nullptr; }

    void direct(int number, Desk<E>& desk) const {
        const Task& task = plan.tasks[size_t(number)];
        if (task.single)
            run_single(s, layer, b, plan, task, task_at(number + 1), q, scale, [&](int i, int block) { return share(task, i, block); }, desk);
        else
            run_extend(s, layer, b, plan, task, q, scale, [&](int i) { return result(task, i); }, desk);
    }

    // A helper takes the last tasks first.
    void compute(int number, Desk<E>& desk, float* room) const {
        const Task& task = plan.tasks[size_t(number)];
        if (task.single)
            run_single(s, layer, b, plan, task, task_at(number - 1), q, scale, [&](int i, int block) { return share(room, task, i, block); }, desk);
        else
            run_extend(s, layer, b, plan, task, q, scale, [&](int i) { return result(room, i); }, desk);
    }

    void commit(int number, float* room) const {
        const Task& task = plan.tasks[size_t(number)];
        for (int i = 0; i < task.items_to - task.items_from; i++) {
            if (!task.single) std::copy(result(room, i), result(room, i) + s.head_dim, result(task, i));
            for (int block = task.first_block; task.single && block < task.last_block; block++) {
                const float* from = share(room, task, i, block);
                std::copy(from, from + s.share_floats(), share(task, i, block));
            }
        }
    }
};

// On all threads of a team at once. Ends with a barrier.
template <class E>
void attend(Team& team, int thread, const Attention<E>& attention, Desk<E>& desk) {
    if (thread == 0) team.deal();
    team.barrier();
    for (int i; (i = team.take(attention.tasks())) >= 0;) attention.direct(i, desk);
    team.barrier();
    if (attention.plan.order.empty()) return;
    merge_singles(attention.s, attention.b, attention.plan, attention.kept, attention.out, thread, team.size());
    team.barrier();
}

// By the caller and whoever helps, each at a desk of its own.
template <class E>
void attend_together(Board& board, const Attention<E>& attention, std::vector<Desk<E>>& desks) {
    board.run(
        attention.tasks(), [&](int number) { attention.direct(number, desks[0]); },
        [attention, &desks](int number, int thread, float* room) { attention.compute(number, desks[size_t(thread)], room); },
        [attention](int number, float* room) { attention.commit(number, room); });
    merge_singles(attention.s, attention.b, attention.plan, attention.kept, attention.out, 0, 1);
}

// Floats of the largest result of a task of `attend_together`.
inline size_t attend_room(const Shape& s) { return size_t(MOST_QUERIES) * PIECE * size_t(s.share_floats()); }

}  // namespace phloem
