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

// What came of a row, and where it is: `top` ids and as many log-probabilities.
struct Scored {
    float* logprob;
    int64_t* ids;
    float* top_logprobs;

    static Scored of(const PhloemScores& scores, int row) {
        const size_t at = size_t(row) * size_t(scores.top);
        return {scores.logprobs + row, scores.top_ids + at, scores.top_logprobs + at};
    }

    // In a room of floats, which is aligned for the ids.
    static Scored in(float* room, int top) {
        int64_t* ids = reinterpret_cast<int64_t*>(room);
        float* logprobs = reinterpret_cast<float*>(ids + top);
        return {logprobs + top, ids, logprobs};
    }
    static size_t floats(int top) { return size_t(top) * (sizeof(int64_t) / sizeof(float) + 1) + 1; }

    void copy_from(const Scored& other, int top) const {
        *logprob = *other.logprob;
        std::copy(other.ids, other.ids + top, ids);
        std::copy(other.top_logprobs, other.top_logprobs + top, top_logprobs);
    }
};

class RowScore {
public:
    RowScore(const PhloemScores& scores, int row, float* room, const Scored& out)
        : s_(scores), row_(row), room_(room), out_(out), logits_(scores.logits + size_t(scores.at == nullptr ? row : scores.at[row]) * size_t(scores.vocab)) {}

    void run() {
        const Peak peak(logits_, s_.vocab);
        const double all = peak.broken ? std::numeric_limits<double>::quiet_NaN() : log_sum(peak.value);
        *out_.logprob = float(double(logits_[s_.targets[row_]]) - all);
        if (s_.top == 0) return;
        if (peak.broken)
            for (int i = 0; i < s_.top; i++) out_.ids[i] = i;
        else
            rank();
        for (int i = 0; i < s_.top; i++) out_.top_logprobs[i] = float(double(logits_[out_.ids[i]]) - all);
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
            if (logits_[id] > least) out_.ids[found++] = id;
        });
        each_at_least(least, [&](int id) {
            if (logits_[id] == least && found < s_.top) out_.ids[found++] = id;
        });
        std::sort(out_.ids, out_.ids + s_.top, [this](int64_t a, int64_t b) { return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b; });
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
    const Scored out_;
    const float* const logits_;
};

}  // namespace phloem
