// A few threads that work on one thing together, in phases.
//
// Not OpenMP: a process has at most one of its runtimes to itself (torch brings its own), and how long its idle threads spin is not ours to
// say. Here a thread that waits spins for a moment, since phases are microseconds apart, then sleeps, so that whoever shares the cores
// gets them.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace phloem {

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// A number that others wait for: spin first, sleep then.
class Turnstile {
public:
    explicit Turnstile(int64_t spin_ns) : spin_ns_(spin_ns) {}

    uint32_t value() const { return number_.load(std::memory_order_acquire); }

    void advance(uint32_t by = 1) {
        number_.fetch_add(by, std::memory_order_seq_cst);
        if (sleepers_.load(std::memory_order_seq_cst) > 0) number_.notify_all();
    }

    void wait_past(uint32_t seen) {
        const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(spin_ns_);
        for (int turn = 1; value() == seen; turn++) {
            pause_briefly();
            if (turn % 64 == 0 && std::chrono::steady_clock::now() >= until) {
                sleep_past(seen);
                return;
            }
        }
    }

private:
    void sleep_past(uint32_t seen) {
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        while (value() == seen) number_.wait(seen, std::memory_order_acquire);
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }

    const int64_t spin_ns_;
    alignas(64) std::atomic<uint32_t> number_{0};
    alignas(64) std::atomic<uint32_t> sleepers_{0};
};

class Team {
public:
    // `cores`: where thread i may run (empty = wherever the system puts it); the caller is thread 0 and is left where it is.
    Team(int size, int64_t spin_ns, const std::vector<int>& cores) : size_(size), spin_ns_(spin_ns), start_(spin_ns), phase_(spin_ns) {
        for (int i = 1; i < size; i++) {
            threads_.emplace_back([this, i] { serve(i); });
            if (!cores.empty()) bind(threads_.back(), cores[size_t(i) % cores.size()]);
        }
    }

    ~Team() {
        stopping_.store(true, std::memory_order_release);
        start_.advance(RUN);
        for (auto& thread : threads_) thread.join();
    }

    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return size_; }
    int64_t spin_ns() const { return spin_ns_; }

    // Runs `work(thread)` on all threads and returns when all are done. One caller at a time.
    void run(const std::function<void(int)>& work) {
        if (size_ == 1) {
            work(0);
            return;
        }
        work_ = &work;
        start_.advance(next() - start_.value());
        work(0);
        barrier();
    }

    // What threads do that are called: given their number and the number of the call, once, before the first.
    void on_call(std::function<void(int, uint32_t)> help) { help_ = std::move(help); }

    // The number of the next call, and the call: the other threads come as soon as they can, and nobody waits for them.
    uint32_t next_call() const { return next() + CALL; }
    void call() { start_.advance(next_call() - start_.value()); }

    // All threads of the running work arrive before one of them goes on. Returns to each at about the same time.
    void barrier() {
        if (size_ == 1) return;
        const uint32_t seen = phase_.value();
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
            arrived_.store(0, std::memory_order_relaxed);
            phase_.advance();
        } else {
            phase_.wait_past(seen);
        }
    }

    // The next of `count` numbered tasks for the calling thread, or -1. Call `deal` between a barrier and the first of them.
    int take(int count) {
        const int task = next_.fetch_add(1, std::memory_order_relaxed);
        return task < count ? task : -1;
    }

    void deal() { next_.store(0, std::memory_order_relaxed); }

private:
    void serve(int thread) {
        uint32_t seen = 0;
        while (true) {
            start_.wait_past(seen);
            seen = start_.value();  // calls may have come and gone
            if (stopping_.load(std::memory_order_acquire)) return;
            if (seen & CALL) {
                help_(thread, seen);
            } else {
                (*work_)(thread);
                barrier();
            }
        }
    }

    uint32_t next() const { return (start_.value() & ~(RUN - 1)) + RUN; }

    static void bind(std::thread& thread, int core) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(core, &set);
        pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);  // refused: it runs wherever it may
    }

    // `start_` counts runs and calls in steps of `RUN`; the bit below says which it is.
    static constexpr uint32_t RUN = 2, CALL = 1;

    const int size_;
    const int64_t spin_ns_;
    Turnstile start_, phase_;
    const std::function<void(int)>* work_ = nullptr;
    std::function<void(int, uint32_t)> help_;
    std::atomic<bool> stopping_{false};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> next_{0};
    std::vector<std::thread> threads_;
};

}  // namespace phloem
