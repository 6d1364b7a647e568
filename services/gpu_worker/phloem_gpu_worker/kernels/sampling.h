// Draws a token from a row of logits: edits, temperature, filters, a race of keyed waits. sampler.py says what all of it means and why.
//
// A row is drawn by one thread, from its own numbers only, in one order: alone or beside any others it draws the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "abi.h"
#include "keys.h"
#include "select.h"
#include "vec.h"

namespace phloem {

constexpr int RACE = 256;  // tokens of a block: first the blocks race, then the tokens of the one that wins
constexpr float GREEDY_BELOW = 1e-5f;

inline int race_blocks(int vocab) { return (vocab + RACE - 1) / RACE; }

// The largest of a row that are numbers, the first place where it stands (0 if there is none), and whether any is none.
struct Peak {
    float value = LOWEST;
    int at = 0;
    bool broken = false;

    Peak(const float* row, int vocab) {
        Lanes none = 0;
        for (int from = 0; from < vocab; from += RACE) {
            const int end = std::min(from + RACE, vocab);
            F16 high = set1(LOWEST);
            for (int i = from; i < end; i += LANES) {
                const F16 x = load_first(row + i, end - i);
                none |= not_numbers(x);
                high = max(x, high);
            }
            const float here = largest(high);
            if (here <= value) continue;
            value = here;
            at = from;
        }
        broken = none != 0;
        while (at < vocab && row[at] != value) at++;
        if (at == vocab) at = 0;
    }
};

// Entries of one row among those of all, which are sorted by row.
struct Entries {
    int64_t begin, end;

    Entries(const int64_t* rows, int64_t count, int64_t row)
        : begin(std::lower_bound(rows, rows + count, row) - rows), end(std::upper_bound(rows + begin, rows + count, row) - rows) {}
};

// A thread's room.
struct Bench {
    float* weights;  // [blocks * RACE], or an edited row
    float* some;     // [blocks * RACE + LANES]
    double* sums;    // [blocks]
};

// What came of a row.
struct Drawn {
    int64_t id;
    float best;
    int8_t fault;

    void put(const PhloemDraws& draws, int row) const {
        draws.ids[row] = id;
        draws.best[row] = best;
        draws.faults[row] = fault;
    }
};

class RowDraw {
public:
    RowDraw(const PhloemDraws& draws, int row, const Bench& bench)
        : d_(draws), row_(row), bench_(bench), blocks_(race_blocks(draws.vocab)),
          raw_(draws.logits + size_t(draws.at == nullptr ? row : draws.at[row]) * size_t(draws.vocab)) {}

    Drawn run() {
        const Entries penalised(d_.penalised_rows, d_.penalised, row_), biased(d_.biased_rows, d_.biased, row_);
        const Entries masked(d_.masked_rows, d_.masked, row_);
        const Peak raw(raw_, d_.vocab);
        if (penalised.begin == penalised.end && biased.begin == biased.end && masked.begin == masked.end) return finish(raw_, raw, raw.broken);
        std::copy(raw_, raw_ + d_.vocab, bench_.weights);
        penalise(penalised);
        for (int64_t i = biased.begin; i < biased.end; i++) bench_.weights[d_.biased_ids[i]] += d_.biases[i];
        if (masked.begin < masked.end) mask(d_.masks + size_t(masked.begin) * size_t(d_.mask_words));
        return finish(bench_.weights, Peak(bench_.weights, d_.vocab), raw.broken);
    }

private:
    void penalise(const Entries& entries) {
        for (int64_t i = entries.begin; i < entries.end; i++) {
            float& value = bench_.weights[d_.penalised_ids[i]];
            value = (value > 0.0f ? value / d_.repetition[i] : value * d_.repetition[i]) - d_.subtract[i];
        }
    }

    // Forbids what is not set; what lies beyond the bits is not.
    void mask(const int32_t* words) {
        for (int i = 0; i < d_.vocab; i += LANES) {
            const uint32_t word = i / 32 < d_.mask_words ? uint32_t(words[i / 32]) : 0u;
            const int here = std::min(LANES, d_.vocab - i);
            const F16 left = only(load_first(bench_.weights + i, here), Lanes(word >> (i % 32)));
            if (here == LANES) {
                store(bench_.weights + i, left);
                continue;
            }
            float lanes[LANES];
            store(lanes, left);
            std::copy(lanes, lanes + here, bench_.weights + i);
        }
    }

    static int8_t fault(const Peak& edited, bool broken) {
        if (broken || edited.broken || edited.value == std::numeric_limits<float>::infinity()) return PHLOEM_NOT_A_NUMBER;
        return edited.value == LOWEST ? PHLOEM_NOTHING_LEGAL : PHLOEM_FINE;
    }

    // From edited logits, which may be where the weights will be. `broken`: the raw ones held NaN, which a mask would hide.
    Drawn finish(const float* logits, const Peak& peak, bool broken) {
        Drawn drawn{peak.at, peak.broken ? std::numeric_limits<float>::quiet_NaN() : peak.value, fault(peak, broken)};
        if (d_.temperature[row_] < GREEDY_BELOW || drawn.fault != PHLOEM_FINE) return drawn;
        weigh(logits, peak.value, d_.temperature[row_]);
        const float least = std::max(d_.min_p[row_], filtered());
        if (least > 0.0f) sum_up(least);
        drawn.id = pick(least);
        return drawn;
    }

    // Weights relative to the most likely token's, and their sums by blocks. Beyond the vocabulary they are 0.
    void weigh(const float* logits, float best, float temperature) {
        const F16 top = set1(best), scale = set1(temperature);
        for (int block = 0; block < blocks_; block++) {
            D16 total = nothing();
            for (int i = block * RACE; i < (block + 1) * RACE; i += LANES) {
                const F16 x = i < d_.vocab ? load_first(logits + i, d_.vocab - i) : set1(LOWEST);
                const F16 weight = exp(div(sub(x, top), scale));
                store(bench_.weights + i, weight);
                total = add(total, weight);
            }
            bench_.sums[block] = sum(total);
        }
    }

    // The sums again, of the weights that are at least this.
    void sum_up(float least) {
        for (int block = 0; block < blocks_; block++) {
            D16 total = nothing();
            for (int i = block * RACE; i < (block + 1) * RACE; i += LANES) total = add_at_least(total, load(bench_.weights + i), set1(least));
            bench_.sums[block] = sum(total);
        }
    }

    // The least weight that top-k and then top-p let through; 0 = all.
    float filtered() {
        const int64_t k = d_.top_k[row_];
        const double p = double(d_.top_p[row_]);
        size_t left = size_t(blocks_) * RACE;
        const float* weights = bench_.weights;
        float least = 0.0f;
        if (k > 0 && k < d_.vocab) {
            least = reaching<Count>(weights, left, double(k), bench_.some);
            if (least > 0.0f && p < 1.0) {
                left = collect(weights, left, least, std::numeric_limits<float>::infinity(), bench_.some);
                weights = bench_.some;
            }
        }
        if (p >= 1.0) return least;
        return reaching<Mass>(weights, left, p * total(weights, left), bench_.some);
    }

    static double total(const float* weights, size_t count) {
        D16 all = nothing();
        for (size_t i = 0; i < count; i += LANES) all = add_at_least(all, load_first(weights + i, int(std::min(count - i, size_t(LANES)))), zero());
        return sum(all);
    }

    // The token that arrives first: after its wait over its weight.
    int64_t pick(float least) const {
        const Waits waits(d_.seeds[row_], d_.children[row_], d_.positions[row_]);
        const int block = first(blocks_, [&](int i) { return waits[uint64_t(i)] / bench_.sums[i]; }, [&](int i) { return bench_.sums[i] > 0.0; });
        const float* inside = bench_.weights + size_t(block) * RACE;
        const auto runs = [&](int i) { return inside[i] > 0.0f && inside[i] >= least; };
        return int64_t(block) * RACE + first(RACE, [&](int i) { return waits[uint64_t(blocks_ + i)] / double(inside[i]); }, runs);
    }

    template <class Arrival, class Runs>
    static int first(int count, const Arrival& arrival, const Runs& runs) {
        int winner = 0;
        double earliest = std::numeric_limits<double>::infinity();
        for (int i = 0; i < count; i++) {
            if (!runs(i)) continue;
            const double when = arrival(i);
            if (when >= earliest) continue;
            earliest = when;
            winner = i;
        }
        return winner;
    }

    const PhloemDraws& d_;
    const int row_;
    const Bench& bench_;
    const int blocks_;
    const float* const raw_;
};

}  // namespace phloem
