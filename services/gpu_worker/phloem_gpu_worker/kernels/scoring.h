// Log-probabilities of raw logits: of one token of each row, and of the most likely.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

#include "abi.h"
#include "sampling.h"
#include "select.h"
#include "vec.h"

namespace phloem {

class RowScore {
public:
    RowScore(const PhloemScores& scores, int row, float* room)
        : s_(scores), row_(row), room_(room), logits_(scores.logits + size_t(scores.at == nullptr ? row : scores.at[row]) * size_t(scores.vocab)),
          ids_(scores.top_ids + size_t(row) * size_t(scores.top)) {}

    void run() {
        const Peak peak(logits_, s_.vocab);
        const double all = peak.broken ? std::numeric_limits<double>::quiet_NaN() : log_sum(peak.value);
        s_.logprobs[row_] = float(double(logits_[s_.targets[row_]]) - all);
        if (s_.top == 0) return;
        if (peak.broken)
            for (int i = 0; i < s_.top; i++) ids_[i] = i;
        else
            rank();
        float* out = s_.top_logprobs + size_t(row_) * size_t(s_.top);
        for (int i = 0; i < s_.top; i++) out[i] = float(double(logits_[ids_[i]]) - all);
    }

private:
    double log_sum(float best) const {
        if (!std::isfinite(best)) return double(best);
        D16 total = nothing();
        for (int i = 0; i < s_.vocab; i += LANES) total = add(total, exp(sub(load_first(logits_ + i, s_.vocab - i), set1(best))));
        return double(best) + std::log(sum(total));
    }

    // The most likely first; of equal ones that with the lower number.
    void rank() {
        const float least = reaching<Count>(logits_, size_t(s_.vocab), double(s_.top), room_);
        int found = 0;
        each_at_least(least, [&](int id) {
            if (logits_[id] > least) ids_[found++] = id;
        });
        each_at_least(least, [&](int id) {
            if (logits_[id] == least && found < s_.top) ids_[found++] = id;
        });
        std::sort(ids_, ids_ + s_.top, [this](int64_t a, int64_t b) { return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b; });
    }

    template <class F>
    void each_at_least(float least, const F& f) const {
        for (int i = 0; i < s_.vocab; i += LANES) {
            const int here = std::min(LANES, s_.vocab - i);
            for (uint32_t hits = at_least(load_first(logits_ + i, here), set1(least)) & (0xffffu >> (LANES - here)); hits != 0; hits &= hits - 1)
                f(i + std::countr_zero(hits));
        }
    }

    const PhloemScores& s_;
    const int row_;
    float* const room_;
    const float* const logits_;
    int64_t* const ids_;
};

}  // namespace phloem
