// Counts allocations: a call on a stream must make none. Alone in its program, since it replaces
// operator new.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "groups.hpp"

namespace {
std::atomic<long> allocations = 0;
}

void* operator new(std::size_t bytes) {
    ++allocations;
    if (void* p = std::malloc(bytes)) return p;
    throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
    std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
    std::free(p);
}

namespace xstage::fabric {
namespace {

TEST(CallPath, AllocatesNothing) {
    const std::string name = testing::fresh_name();
    std::atomic<int> ready = 0;
    std::atomic<long> during = -1;
    const auto errors = testing::run_threads(2, [&](int rank) {
        Fabric fabric(testing::host_options(name, rank, 2));
        StitchedOptions options;
        options.rows = {8, 8};
        options.row_bytes = 1024;
        StitchedTensor tensor(fabric, options);
        auto meet = [&](int count) {
            ++ready;
            while (ready < count) std::this_thread::yield();
        };
        meet(2);
        const long before = allocations;
        meet(4);
        for (int i = 0; i < 50; ++i) {
            tensor.begin(i % 2);
            tensor.publish(i % 2);
            tensor.acquire(i % 2);
            fabric.barrier();
            fabric.synchronize();
        }
        meet(6);
        if (rank == 0) during = allocations - before;
        meet(8);
    });
    for (const std::string& e : errors) EXPECT_EQ(e, "");
    EXPECT_EQ(during, 0);
    EXPECT_GT(allocations, 0);
}

}  // namespace
}  // namespace xstage::fabric
