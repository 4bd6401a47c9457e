#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace xstage::model {

/// Calls f(0) ... f(n - 1), on so many threads at most, in no particular order; the calls must not
/// touch what others write. Rethrows the first exception once all threads are done.
template <class F>
void parallel_for(std::size_t n, int threads, F f) {
    std::atomic<std::size_t> next{0};
    std::exception_ptr failed;
    std::mutex failing;
    const auto work = [&] {
        try {
            for (std::size_t i = next++; i < n; i = next++) f(i);
        } catch (...) {
            const std::lock_guard lock(failing);
            if (!failed) failed = std::current_exception();
            next = n;
        }
    };
    {
        std::vector<std::jthread> pool;
        for (int t = 1; t < threads && static_cast<std::size_t>(t) < n; ++t) {
            pool.emplace_back(work);
        }
        work();
    }
    if (failed) std::rethrow_exception(failed);
}

}  // namespace xstage::model
