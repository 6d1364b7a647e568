// The whole decoder in one call, and what follows it: logits, draws, log-probabilities.
#include <cmath>
#include <exception>

#include "abi.h"
#include "attention.h"
#include "board.h"
#include "layers.h"
#include "matmul.h"
#include "sampling.h"
#include "scoring.h"
#include "team.h"
#include "vec.h"

struct PhloemTeam {
    phloem::Team team;
    phloem::Board board{team};
    phloem::Plan plan;  // of the step that runs; kept so that its memory is

    PhloemTeam(int size, int64_t spin_ns, const std::vector<int>& cores) : team(size, spin_ns, cores) {}
};

namespace phloem {
namespace {

constexpr size_t ALIGNMENT = 64;
constexpr int JOBS = 8;           // of a layer: four products, the attention, norms and rotations
constexpr int ROWS = 8;           // of a task of those two
constexpr int ROWS_HELPED = 32;   // fewer take the caller less time than to share them out
constexpr int UNITS = 4;          // blocks of a task of a product by itself, which has many
constexpr int MOST_HELPED = 384;  // tokens of a step, or rows of such a product: more have a large result each

// Floats of the result of `units` blocks, or pairs of them.
size_t product_room(int rows, int units) { return size_t(rows) * size_t(units) * MOST_BLOCKS * BLOCK; }

// Hands out aligned pieces of a workspace, or counts how large it must be.
class Pieces {
public:
    explicit Pieces(void* begin) : begin_(static_cast<char*>(begin)) {}

    template <class T>
    T* take(size_t count) {
        const size_t here = used_;
        used_ += (count * sizeof(T) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        return begin_ == nullptr ? nullptr : reinterpret_cast<T*>(begin_ + here);
    }

    size_t used() const { return used_ + ALIGNMENT; }

private:
    char* begin_;
    size_t used_ = 0;
};

void* aligned(void* p) { return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(p) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT); }

bool wants_totals(const PhloemLinear& w) { return w.offsets != nullptr; }
int width(const PhloemLinear& w) { return w.blocks * BLOCK; }

// A thread's room for widened blocks of two: gate and up.
size_t widened_size(const PhloemLinear& w) {
    return w.kind == PHLOEM_INT8 || w.kind == PHLOEM_INT4 ? size_t(2) * w.inputs * BLOCK : 0;
}

size_t widened_size(const PhloemModel& m) {
    size_t most = widened_size(m.head);
    for (int i = 0; i < m.layer_count; i++)
        for (const PhloemLinear* w : {&m.layers[i].qkv, &m.layers[i].out, &m.layers[i].gate_up, &m.layers[i].down})
            most = std::max(most, widened_size(*w));
    return most;
}

// `y` = product + bias, or added to what is there. `y` f32 [rows][outputs].
struct Write {
    const PhloemLinear& w;
    float* y;
    int stride;
    bool on_top;

    void operator()(int row, int rows, int block, const float* out) const {
        const int from = block * BLOCK, count = std::min(BLOCK, w.outputs - from);
        for (int r = 0; r < rows; r++) {
            const float* in = out + size_t(r) * MOST_BLOCKS * BLOCK;
            float* to = y + size_t(row + r) * stride + from;
            int i = 0;
            for (; i + LANES <= count; i += LANES) {
                F16 value = load(in + i);
                if (w.bias != nullptr) value = add(value, load(w.bias + from + i));
                store(to + i, on_top ? add(load(to + i), value) : value);
            }
            for (; i < count; i++) {
                const float value = in[i] + (w.bias != nullptr ? w.bias[from + i] : 0.0f);
                to[i] = on_top ? to[i] + value : value;
            }
        }
    }
};

// silu(gate) * up of alternating blocks, as activations [rows][inner].
template <class E>
struct WriteGated {
    const PhloemLinear& w;
    E* y;
    int stride;

    void operator()(int row, int rows, int block, const float* out) const {
        const int from = block / 2 * BLOCK, count = std::min(BLOCK, stride - from);
        for (int r = 0; r < rows; r++) one(out + size_t(r) * MOST_BLOCKS * BLOCK, block * BLOCK, y + size_t(row + r) * stride + from, count);
    }

    void one(const float* in, int at, E* to, int count) const {
        for (int i = 0; i < count; i += LANES) {
            F16 gate = load(in + i), up = load(in + BLOCK + i);
            if (w.bias != nullptr) {
                gate = add(gate, load(w.bias + at + i));
                up = add(up, load(w.bias + at + BLOCK + i));
            }
            const F16 value = gated(gate, up);
            if (i + LANES <= count) {
                Kind<E>::put(to + i, value);
                continue;
            }
            float lanes[LANES];
            store(lanes, value);
            for (int j = 0; i + j < count; j++) to[i + j] = Kind<E>::from(lanes[j]);
        }
    }
};

// The step's arrays in its workspace.
template <class E>
struct Arrays {
    float* state;       // [T][hidden] the residual stream
    E* x;               // [T][hidden]
    float* qkv;         // [T][width of qkv]
    E* q;               // [T][heads][head_dim]
    E* attended;        // [T][heads * head_dim]
    E* act;             // [T][inner]
    float* totals;      // [T][most inputs / 32]
    float *cosines, *sines; // [T][head_dim / 2]
    float* shares;      // [share_count][head_dim + 2]
    bf16* widened;      // [threads][widened_size]
    size_t widened_each;

    Arrays(Pieces& pieces, const PhloemModel& m, int threads, int tokens, int64_t share_count) {
        const size_t t = size_t(tokens);
        const PhloemLayer& layer = m.layers[0];
        const int most = std::max({m.hidden, m.inner, m.heads * m.head_dim});
        state = pieces.take<float>(t * m.hidden);
        x = pieces.take<E>(t * m.hidden);
        qkv = pieces.take<float>(t * width(layer.qkv));
        q = pieces.take<E>(t * m.heads * m.head_dim);
        attended = pieces.take<E>(t * m.heads * m.head_dim);
        act = pieces.take<E>(t * m.inner);
        totals = pieces.take<float>(t * (most / GROUP + 1));
        cosines = pieces.take<float>(t * m.head_dim / 2);
        sines = pieces.take<float>(t * m.head_dim / 2);
        shares = pieces.take<float>(size_t(share_count) * (m.head_dim + 2));
        widened_each = widened_size(m);
        widened = pieces.take<bf16>(widened_each * threads);
    }
};

int64_t shares_of(const PhloemModel& m, const PhloemBatch& b) {
    int64_t count = 0;
    for (int row = 0; row < b.row_count; row++)
        if (b.counts[row] == 1) count += int64_t(blocks_of(b.starts[row] + 1)) * m.heads;
    return count;
}

// One step of one model. Its methods run on all threads at once, or on the caller's with helpers.
template <class E>
class Step {
public:
    Step(const PhloemModel& m, PhloemTeam& team, const PhloemBatch& b, E* hidden, void* workspace)
        : m_(m), b_(b), team_(team.team), plan_(team.plan), shape_(m), hidden_(hidden), pieces_(aligned(workspace)),
          a_(pieces_, m, team.team.size(), b.token_count, shares_of(m, b)), desks_(size_t(team.team.size()), Desk<E>(shape_)),
          board_(helped(team.team, b) ? &team.board : nullptr) {
        Planner(shape_, b, plan_).run();
        row_of_.resize(size_t(b.token_count));
        for (int row = 0, token = 0; row < b.row_count; row++)
            for (int64_t i = 0; i < b.counts[row]; i++) row_of_[size_t(token++)] = row;
    }

    void run() {
        if (board_ == nullptr) {
            const std::function<void(int)> work = [this](int thread) { stack(thread); };
            team_.run(work);
            return;
        }
        board_->open(JOBS * m_.layer_count, most_tasks(), room());
        stack(0);
        board_->close();
    }

private:
    void stack(int thread) {
        own_rows(thread, [&](int t) {
            embed(t);
            angles(t);
        });
        for (int i = 0; i < m_.layer_count; i++) {
            const PhloemLayer& layer = m_.layers[i];
            norm_rows(thread, layer.input_norm, layer.qkv, a_.x);
            meet();
            product(thread, layer.qkv, a_.x, m_.hidden, Write{layer.qkv, a_.qkv, width(layer.qkv), false});
            meet();
            turn_rows(thread, layer);
            const Attention<E> attention{shape_, layer, b_, plan_, a_.q, a_.shares, a_.attended};
            if (board_ == nullptr)
                attend(team_, thread, attention, desks_[size_t(thread)]);
            else
                attend_together(*board_, attention, desks_);
            totals(thread, layer.out, a_.attended, m_.heads * m_.head_dim);
            product(thread, layer.out, a_.attended, m_.heads * m_.head_dim, Write{layer.out, a_.state, m_.hidden, true});
            meet();
            norm_rows(thread, layer.post_norm, layer.gate_up, a_.x);
            meet();
            product(thread, layer.gate_up, a_.x, m_.hidden, WriteGated<E>{layer.gate_up, a_.act, m_.inner}, 2);
            meet();
            totals(thread, layer.down, a_.act, m_.inner);
            product(thread, layer.down, a_.act, m_.inner, Write{layer.down, a_.state, m_.hidden, true});
            meet();
        }
        own_rows(thread, [&](int t) {
            normalise(a_.state + size_t(t) * m_.hidden, m_.norm, m_.hidden, m_.epsilon, hidden_ + size_t(t) * m_.hidden);
        });
    }

    // Who is helped does everything, and waits for nobody.
    int parts() const { return board_ == nullptr ? team_.size() : 1; }
    void meet() {
        if (board_ == nullptr) team_.barrier();
    }

    template <class F>
    void own_rows(int thread, const F& f) {
        const int64_t rows = b_.token_count, threads = parts();
        for (int t = int(rows * thread / threads); t < int(rows * (thread + 1) / threads); t++) f(t);
    }

    void embed(int t) {
        float* out = a_.state + size_t(t) * m_.hidden;
        const size_t token = size_t(b_.tokens[t]);
        if (m_.embedding != nullptr) {
            const E* row = static_cast<const E*>(m_.embedding) + token * m_.hidden;
            for (int i = 0; i < m_.hidden; i++) out[i] = to_float(row[i]);
            return;
        }
        unpack_row(m_.head, token, out);
    }

    static float to_float(bf16 x) { return widen(x); }
    static float to_float(float x) { return x; }

    // An output's weights as floats.
    static void unpack_row(const PhloemLinear& w, size_t output, float* out) {
        const size_t block = output / BLOCK, lane = output % BLOCK;
        for (int k = 0; k < w.inputs; k++) {
            const size_t at = (block * (w.inputs / 2) + k / 2) * 2 * BLOCK + lane * 2 + k % 2;
            const size_t scale = (block * (w.inputs / GROUP) + k / GROUP) * BLOCK + lane;
            switch (w.kind) {
                case PHLOEM_F32: out[k] = static_cast<const float*>(w.weights)[(block * w.inputs + k) * BLOCK + lane]; break;
                case PHLOEM_BF16: out[k] = widen(static_cast<const bf16*>(w.weights)[at]); break;
                case PHLOEM_INT8: out[k] = float(static_cast<const int8_t*>(w.weights)[at]) * one_half(w.scales + scale); break;
                default: out[k] = float(int4_value(w, block, lane, k)) * one_half(w.scales + scale) + (w.offsets == nullptr ? 0.0f : one_half(w.offsets + scale));
            }
        }
    }

    static int int4_value(const PhloemLinear& w, size_t block, size_t lane, int k) {
        const size_t group = block * (w.inputs / GROUP) + k / GROUP, quarter = k % GROUP / 8;
        const size_t word = (group * 4 + quarter) * 2 * BLOCK + lane / LANES * BLOCK + lane % LANES * 2 + k % 2;
        return (static_cast<const uint16_t*>(w.weights)[word] >> (k % 8 / 2 * 4)) & 15;
    }

    static float one_half(const half* p) {
        half several[LANES] = {*p};
        float lanes[LANES];
        store(lanes, load_half(several));
        return lanes[0];
    }

    void angles(int t) {
        const int half_size = m_.head_dim / 2;
        for (int i = 0; i < half_size; i++) {
            const float angle = float(b_.positions[t]) * m_.frequencies[i];
            a_.cosines[size_t(t) * half_size + i] = std::cos(angle);
            a_.sines[size_t(t) * half_size + i] = std::sin(angle);
        }
    }

    // What is done to each row by itself: all threads their own, or the caller all of few, or tasks of several rows. `one(t)` does it; `compute(t, room)`
    // and `commit(t, room)` do with `floats` of room each.
    template <class One, class Compute, class Commit>
    void each_row(int thread, size_t floats, const One& one, const Compute& compute, const Commit& commit) {
        const int rows = b_.token_count;
        if (board_ == nullptr || rows < ROWS_HELPED) {
            own_rows(thread, one);
            return;
        }
        const auto some = [rows](int task, const auto& f) {
            for (int t = task * ROWS; t < std::min(rows, (task + 1) * ROWS); t++) f(t);
        };
        board_->run(
            (rows + ROWS - 1) / ROWS, [&](int task) { some(task, one); },
            [=](int task, int, float* room) { some(task, [&](int t) { compute(t, room + size_t(t - task * ROWS) * floats); }); },
            [=](int task, float* room) { some(task, [&](int t) { commit(t, room + size_t(t - task * ROWS) * floats); }); });
    }

    void norm_rows(int thread, const float* weight, const PhloemLinear& next, E* out) {
        const auto norm = [this, weight](int t, E* to) { normalise(a_.state + size_t(t) * m_.hidden, weight, m_.hidden, m_.epsilon, to); };
        each_row(
            thread, size_t(m_.hidden),
            [&](int t) {
                norm(t, out + size_t(t) * m_.hidden);
                row_totals(next, out, m_.hidden, t);
            },
            [=](int t, float* room) { norm(t, reinterpret_cast<E*>(room)); },
            [=, this, &next](int t, float* room) {
                const E* from = reinterpret_cast<const E*>(room);
                std::copy(from, from + m_.hidden, out + size_t(t) * m_.hidden);
                row_totals(next, out, m_.hidden, t);
            });
    }

    // The group sums of all rows, if the product needs them; ends with a barrier then.
    void totals(int thread, const PhloemLinear& next, const E* x, int size) {
        if (!wants_totals(next)) return;
        own_rows(thread, [&](int t) { row_totals(next, x, size, t); });
        meet();
    }

    void row_totals(const PhloemLinear& next, const E* x, int size, int t) {
        if constexpr (sizeof(E) == sizeof(bf16))
            if (wants_totals(next)) group_totals(x + size_t(t) * size, size, a_.totals + size_t(t) * (size / GROUP));
    }

    template <class Done>
    void product(int thread, const PhloemLinear& w, const E* x, int size, const Done& done, int unit = 1) {
        const Inputs inputs{x, size, wants_totals(w) ? a_.totals : nullptr};
        const auto scratch = [this](int whose) { return a_.widened + a_.widened_each * size_t(whose); };
        if (board_ == nullptr)
            multiply(w, inputs, b_.token_count, thread, parts(), unit, scratch(thread), done);
        else
            multiply_together(*board_, w, inputs, b_.token_count, unit, 1, scratch, done);
    }

    // Long prompts are not helped with, but done side by side: for so long, others wait anyway.
    static bool helped(const Team& team, const PhloemBatch& b) { return team.size() > 1 && b.token_count <= MOST_HELPED; }

    size_t room() const { return std::max({product_room(b_.token_count, 1), attend_room(shape_), size_t(ROWS) * std::max(m_.hidden, width(m_.layers[0].qkv))}); }

    int most_tasks() const {
        int most = std::max(int(plan_.tasks.size()), int(b_.token_count));
        for (int i = 0; i < m_.layer_count; i++)
            for (const PhloemLinear* w : {&m_.layers[i].qkv, &m_.layers[i].out, &m_.layers[i].gate_up, &m_.layers[i].down}) most = std::max(most, int(w->blocks));
        return most;
    }

    // q, k and v of each token: normed, rotated, q to activations, k and v into the pool.
    void turn_rows(int thread, const PhloemLayer& layer) {
        const size_t wide = size_t(width(layer.qkv));
        each_row(
            thread, wide,
            [&](int t) {
                turn(layer, t, a_.qkv + size_t(t) * wide);
                keep(layer, t, a_.qkv + size_t(t) * wide);
            },
            [=, this, &layer](int t, float* room) {
                std::copy(a_.qkv + size_t(t) * wide, a_.qkv + size_t(t + 1) * wide, room);
                turn(layer, t, room);
            },
            [=, this, &layer](int t, float* room) { keep(layer, t, room); });
    }

    void turn(const PhloemLayer& layer, int t, float* heads) {
        const int size = m_.head_dim, half_size = size / 2;
        const float *cosines = a_.cosines + size_t(t) * half_size, *sines = a_.sines + size_t(t) * half_size;
        for (int h = 0; h < m_.heads + m_.kv_heads; h++) {
            float* head = heads + size_t(h) * size;
            const float* norm = h < m_.heads ? layer.q_norm : layer.k_norm;
            if (norm != nullptr) {
                const float factor = inverse_rms(head, size, m_.epsilon);
                for (int i = 0; i < size; i++) head[i] = head[i] * factor * norm[i];
            }
            rotate(head, cosines, sines, half_size);
        }
    }

    void keep(const PhloemLayer& layer, int t, const float* heads) {
        const int size = m_.head_dim;
        E* q = a_.q + size_t(t) * m_.heads * size;
        for (int i = 0; i < m_.heads * size; i += LANES) Kind<E>::put(q + i, load(heads + i));
        const int64_t* table = b_.tables + size_t(row_of_[size_t(t)]) * b_.table_width;
        const float *k = heads + size_t(m_.heads) * size, *v = k + size_t(m_.kv_heads) * size;
        for (int kv = 0; kv < m_.kv_heads; kv++)
            store_head<E>(shape_, layer, table, b_.positions[t], kv, k + size_t(kv) * size, v + size_t(kv) * size);
    }

    const PhloemModel& m_;
    const PhloemBatch& b_;
    Team& team_;
    Plan& plan_;
    Shape shape_;
    E* hidden_;
    Pieces pieces_;
    Arrays<E> a_;
    std::vector<Desk<E>> desks_;  // of the threads
    Board* board_;  // null: all threads do the step side by side
    std::vector<int> row_of_;
};

// One product by itself.
struct Product {
    float* totals;
    bf16* widened;
    size_t widened_each;

    Product(Pieces& pieces, const PhloemLinear& w, int threads, int rows) {
        totals = pieces.take<float>(wants_totals(w) ? size_t(rows) * (w.inputs / GROUP) : 0);
        widened_each = widened_size(w);
        widened = pieces.take<bf16>(widened_each * threads);
    }

    void run(const PhloemLinear& w, PhloemTeam& all, const void* x, int rows, float* out) {
        Team& team = all.team;
        if (wants_totals(w))
            for (int r = 0; r < rows; r++)
                group_totals(static_cast<const bf16*>(x) + size_t(r) * w.inputs, w.inputs, totals + size_t(r) * (w.inputs / GROUP));
        const Inputs inputs{x, w.inputs, wants_totals(w) ? totals : nullptr};
        const auto scratch = [this](int thread) { return widened + widened_each * size_t(thread); };
        const Write write{w, out, w.outputs, false};
        if (team.size() > 1 && rows <= MOST_HELPED) {
            all.board.open(1, w.blocks, product_room(rows, UNITS));
            multiply_together(all.board, w, inputs, rows, 1, UNITS, scratch, write);
            all.board.close();
            return;
        }
        const std::function<void(int)> work = [&](int thread) { multiply(w, inputs, rows, thread, team.size(), 1, scratch(thread), write); };
        team.run(work);
    }
};

template <class E>
void attend_once(const PhloemModel& m, const PhloemLayer& layer, PhloemTeam& team, const PhloemBatch& b, const E* q, E* out, float* shares) {
    const Shape shape(m);
    Planner(shape, b, team.plan).run();
    const std::function<void(int)> work = [&](int thread) {
        Desk<E> desk(shape);
        attend(team.team, thread, Attention<E>{shape, layer, b, team.plan, q, shares, out}, desk);
    };
    team.team.run(work);
}

template <class E>
void store_all(const PhloemModel& m, const PhloemLayer& layer, const PhloemBatch& b, const float* k, const float* v) {
    const Shape shape(m);
    for (int row = 0, t = 0; row < b.row_count; row++)
        for (int64_t i = 0; i < b.counts[row]; i++, t++)
            for (int kv = 0; kv < m.kv_heads; kv++) {
                const size_t at = (size_t(t) * m.kv_heads + kv) * m.head_dim;
                store_head<E>(shape, layer, b.tables + size_t(row) * b.table_width, b.positions[t], kv, k + at, v + at);
            }
}

// Tokens that one thread weighs in about the time, 0.1 to 0.3 ms, in which another that sleeps has come to help.
constexpr int64_t WORTH_WAKING = 1 << 18;

// Does rows with helpers, one at a time: one may take ten times as long as another. `direct(row)` is the caller's way; `compute(row, thread, room)`
// and `commit(row, room)` a helper's, with `floats` of room. `tokens`: how many are weighed in all of them.
template <class Direct, class Compute, class Commit>
void share_rows(PhloemTeam& all, int rows, int64_t tokens, size_t floats, const Direct& direct, const Compute& compute, const Commit& commit) {
    if (all.team.size() == 1 || rows == 1 || tokens < WORTH_WAKING) {
        for (int row = 0; row < rows; row++) direct(row);
        return;
    }
    all.board.open(1, rows, floats);
    all.board.run(rows, direct, compute, commit);
    all.board.close();
}

// Of a greedy row only the largest is looked for, which is four times as fast at least.
int64_t weighed(const PhloemDraws& d) {
    int64_t tokens = 0;
    for (int row = 0; row < d.rows; row++) tokens += d.temperature[row] < GREEDY_BELOW ? d.vocab / 4 : d.vocab;
    return tokens;
}

struct Benches {
    float *weights, *some;
    double* sums;
    size_t blocks;

    Benches(Pieces& pieces, int vocab, int threads) : blocks(size_t(race_blocks(vocab))) {
        weights = pieces.take<float>(threads * blocks * RACE);
        some = pieces.take<float>(threads * (blocks * RACE + LANES));
        sums = pieces.take<double>(threads * blocks);
    }

    Bench of(int thread) const {
        const size_t t = size_t(thread);
        return {weights + t * blocks * RACE, some + t * (blocks * RACE + LANES), sums + t * blocks};
    }
};

template <class E>
size_t step_bytes(const PhloemModel& m, int threads, const PhloemBatch& b) {
    Pieces pieces(nullptr);
    Arrays<E>(pieces, m, threads, b.token_count, shares_of(m, b));
    return pieces.used();
}

}  // namespace
}  // namespace phloem

using namespace phloem;

extern "C" {

void phloem_sizes(int32_t sizes[6]) {
    sizes[0] = sizeof(PhloemLinear);
    sizes[1] = sizeof(PhloemLayer);
    sizes[2] = sizeof(PhloemModel);
    sizes[3] = sizeof(PhloemBatch);
    sizes[4] = sizeof(PhloemDraws);
    sizes[5] = sizeof(PhloemScores);
}

const char* phloem_level(void) { return PHLOEM_LEVEL; }

PhloemTeam* phloem_team_new(int32_t threads, int64_t spin_ns, const int32_t* cores, int32_t core_count) {
    try {
        return new PhloemTeam(threads, spin_ns, std::vector<int>(cores, cores + core_count));
    } catch (const std::exception&) {
        return nullptr;
    }
}

void phloem_team_free(PhloemTeam* team) { delete team; }

int64_t phloem_workspace(const PhloemModel* model, const PhloemTeam* team, const PhloemBatch* batch) {
    const int threads = team->team.size();
    return int64_t(model->dtype == PHLOEM_BF16 ? step_bytes<bf16>(*model, threads, *batch) : step_bytes<float>(*model, threads, *batch));
}

void phloem_forward(const PhloemModel* model, PhloemTeam* team, const PhloemBatch* batch, void* hidden, void* workspace) {
    if (model->dtype == PHLOEM_BF16)
        Step<bf16>(*model, *team, *batch, static_cast<bf16*>(hidden), workspace).run();
    else
        Step<float>(*model, *team, *batch, static_cast<float*>(hidden), workspace).run();
}

int64_t phloem_multiply_workspace(const PhloemLinear* weight, const PhloemTeam* team, int32_t rows) {
    Pieces pieces(nullptr);
    Product(pieces, *weight, team->team.size(), rows);
    return int64_t(pieces.used());
}

void phloem_multiply(const PhloemLinear* weight, PhloemTeam* team, const void* x, int32_t rows, float* out, void* workspace) {
    Pieces pieces(aligned(workspace));
    Product(pieces, *weight, team->team.size(), rows).run(*weight, *team, x, rows, out);
}

int64_t phloem_attend_workspace(const PhloemModel* model, const PhloemBatch* batch) {
    return shares_of(*model, *batch) * (model->head_dim + 2) * int64_t(sizeof(float));
}

void phloem_attend(
    const PhloemModel* model, const PhloemLayer* layer, PhloemTeam* team, const PhloemBatch* batch, const void* q, void* out,
    void* workspace) {
    float* shares = static_cast<float*>(workspace);
    if (model->dtype == PHLOEM_BF16)
        attend_once(*model, *layer, *team, *batch, static_cast<const bf16*>(q), static_cast<bf16*>(out), shares);
    else
        attend_once(*model, *layer, *team, *batch, static_cast<const float*>(q), static_cast<float*>(out), shares);
}

void phloem_store(const PhloemModel* model, const PhloemLayer* layer, const PhloemBatch* batch, const float* k, const float* v) {
    if (model->dtype == PHLOEM_BF16)
        store_all<bf16>(*model, *layer, *batch, k, v);
    else
        store_all<float>(*model, *layer, *batch, k, v);
}

int64_t phloem_draw_workspace(const PhloemDraws* draws, const PhloemTeam* team) {
    Pieces pieces(nullptr);
    Benches(pieces, draws->vocab, team->team.size());
    return int64_t(pieces.used());
}

void phloem_draw(const PhloemDraws* draws, PhloemTeam* team, void* workspace) {
    Pieces pieces(aligned(workspace));
    const Benches benches(pieces, draws->vocab, team->team.size());
    const auto drawn = [&](int row, int thread) { return RowDraw(*draws, row, benches.of(thread)).run(); };
    share_rows(
        *team, draws->rows, weighed(*draws), sizeof(Drawn) / sizeof(float), [&](int row) { drawn(row, 0).put(*draws, row); },
        [&](int row, int thread, float* room) { *reinterpret_cast<Drawn*>(room) = drawn(row, thread); },
        [&](int row, float* room) { reinterpret_cast<const Drawn*>(room)->put(*draws, row); });
}

int64_t phloem_score_workspace(const PhloemScores* scores, const PhloemTeam* team) {
    Pieces pieces(nullptr);
    pieces.take<float>(size_t(scores->vocab + LANES) * size_t(team->team.size()));
    return int64_t(pieces.used());
}

void phloem_score(const PhloemScores* scores, PhloemTeam* team, void* workspace) {
    const size_t each = size_t(scores->vocab + LANES);
    float* room = Pieces(aligned(workspace)).take<float>(each * size_t(team->team.size()));
    const int64_t tokens = int64_t(scores->rows) * scores->vocab;
    const int top = scores->top;
    const auto score = [&](int row, int thread, const Scored& out) { RowScore(*scores, row, room + each * size_t(thread), out).run(); };
    share_rows(
        *team, scores->rows, tokens, Scored::floats(top), [&](int row) { score(row, 0, Scored::of(*scores, row)); },
        [&](int row, int thread, float* result) { score(row, thread, Scored::in(result, top)); },
        [&](int row, float* result) { Scored::of(*scores, row).copy_from(Scored::in(result, top), top); });
}

}  // extern "C"
