// A step on one thread, with helpers that nobody waits for.
//
// Threads that must all arrive before any goes on are as late as the latest, and on few cores one always is: the other services handle the
// tokens of the step before. Here the caller does the step; helpers take tasks off its hands while they have a core. A helper computes into
// room of its own. If the caller has nothing left to do but what a helper has taken and does not finish, it takes the task back and does it
// itself: tasks are microseconds, a helper without a core is away for a slice. The helper notices when it wants to hand its result in, and
// throws it away. What it has read by then may have been changed under it; that is why it must not write before it is let.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "team.h"

namespace phloem {

class Board {
public:
    explicit Board(Team& team) : team_(team) {
        team.on_call([this](int thread, uint32_t run) { help(thread, run); });
    }

    // Room for a helper's result: floats of one task.
    float* room(int thread) { return rooms_[size_t(thread)].data(); }

    // Calls the helpers, for at most so many jobs of so many tasks with results of so many floats.
    void open(int jobs, int tasks, size_t floats) {
        if (jobs > job_count_) {
            jobs_ = std::make_unique<Job[]>(size_t(jobs));
            job_count_ = jobs;
        }
        if (tasks > state_count_) {
            states_ = std::make_unique<std::atomic<uint64_t>[]>(size_t(tasks));
            state_count_ = tasks;
        }
        rooms_.resize(size_t(team_.size()));
        for (auto& room : rooms_)
            if (room.size() < floats) room.resize(floats);
        used_ = 0;
        current_.store(nullptr, std::memory_order_relaxed);
        open_.store(team_.next_call(), std::memory_order_seq_cst);
        team_.call();
    }

    // Sends the helpers away and waits until none reads anything of the step.
    void close() {
        open_.store(0, std::memory_order_seq_cst);
        posted_.advance();
        while (inside_.load(std::memory_order_seq_cst) > 0) pause_briefly();
    }

    // Does tasks 0 to count - 1. `direct(task)` is the caller's way; `compute(task, thread, room)` a helper's, which may write to its room only,
    // and `commit(task, room)` hands that in. Between `open` and `close`, from one thread.
    void run(
        int count, const std::function<void(int)>& direct, std::function<void(int, int, float*)> compute, std::function<void(int, float*)> commit) {
        Job& job = jobs_[size_t(used_++)];
        job.phase = ++phase_;
        job.back.store(count, std::memory_order_relaxed);
        job.compute = std::move(compute);
        job.commit = std::move(commit);
        current_.store(&job, std::memory_order_release);
        posted_.advance();
        const auto began = Clock::now();
        int mine = 0;
        for (int task = 0; task < count; task++) {
            if (!claim(job, task, DONE)) continue;
            direct(task);
            mine++;
        }
        if (mine == count) return;
        const auto each = (Clock::now() - began) / std::max(mine, 1);
        for (int task = 0; task < count; task++)
            if (take_back(job, task, each * PATIENCE)) direct(task);
    }

private:
    using Clock = std::chrono::steady_clock;

    enum State : uint64_t { TAKEN = 1, COMMITTING = 2, DONE = 3, STATES = 4 };
    static constexpr int PATIENCE = 2;  // times what a task takes, for a helper that is probably about to finish

    struct Job {
        uint64_t phase = 0;
        std::atomic<int> back{0};  // helpers take tasks from the last on: each thread so reads its weights in one stream
        std::function<void(int, int, float*)> compute;
        std::function<void(int, float*)> commit;
    };

    bool claim(const Job& job, int task, State state) {
        auto& here = states_[size_t(task)];
        uint64_t old = here.load(std::memory_order_relaxed);
        return old < job.phase * STATES && here.compare_exchange_strong(old, job.phase * STATES + state, std::memory_order_acq_rel);
    }

    // Waits for a task that a helper has taken. True: it takes too long, and is the caller's now.
    bool take_back(const Job& job, int task, Clock::duration patience) {
        auto& here = states_[size_t(task)];
        const uint64_t base = job.phase * STATES;
        uint64_t state = here.load(std::memory_order_acquire);
        if (state == base + DONE) return false;
        const auto until = Clock::now() + patience;
        for (; state != base + DONE; state = here.load(std::memory_order_acquire)) {
            if (state == base + TAKEN && Clock::now() >= until && here.compare_exchange_strong(state, base + DONE, std::memory_order_acq_rel)) return true;
            pause_briefly();
        }
        return false;
    }

    void help(int thread, uint32_t run) {
        inside_.fetch_add(1, std::memory_order_seq_cst);
        uint32_t seen = posted_.value();
        while (open_.load(std::memory_order_seq_cst) == run) {
            if (Job* job = current_.load(std::memory_order_acquire); job != nullptr) help_with(*job, thread);
            posted_.wait_past(seen);
            seen = posted_.value();
        }
        inside_.fetch_sub(1, std::memory_order_seq_cst);
    }

    void help_with(Job& job, int thread) {
        for (int task; (task = job.back.fetch_sub(1, std::memory_order_relaxed) - 1) >= 0;) {
            if (!claim(job, task, TAKEN)) return;  // the caller has come so far
            job.compute(task, thread, room(thread));
            uint64_t taken = job.phase * STATES + TAKEN;
            auto& here = states_[size_t(task)];
            if (!here.compare_exchange_strong(taken, job.phase * STATES + COMMITTING, std::memory_order_acq_rel)) return;
            job.commit(task, room(thread));
            here.store(job.phase * STATES + DONE, std::memory_order_release);
        }
    }

    Team& team_;
    std::unique_ptr<Job[]> jobs_;
    int job_count_ = 0, used_ = 0;
    std::unique_ptr<std::atomic<uint64_t>[]> states_;
    int state_count_ = 0;
    std::vector<std::vector<float>> rooms_;
    uint64_t phase_ = 0;
    Turnstile posted_{team_.spin_ns()};
    alignas(64) std::atomic<Job*> current_{nullptr};
    alignas(64) std::atomic<uint32_t> open_{0};
    alignas(64) std::atomic<int> inside_{0};
};

}  // namespace phloem
