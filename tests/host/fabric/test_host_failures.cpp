// Groups that break: late ranks, dead ranks, ranks in different calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "fabric_suite.hpp"
#include "groups.hpp"

namespace xstage::fabric {
namespace {

using testing::fresh_name;
using ::testing::HasSubstr;
using testing::host_options;
using testing::Processes;

FabricOptions quick_options(const std::string& name, int rank, int world) {
    FabricOptions options = host_options(name, rank, world);
    options.wait_timeout = std::chrono::milliseconds(150);
    return options;
}

StitchedOptions small_tensor(int world) {
    StitchedOptions options;
    options.rows.assign(world, 8);
    options.row_bytes = 1024;
    return options;
}

void expect_all(const std::vector<std::string>& errors, const std::string& error) {
    for (std::size_t r = 0; r < errors.size(); ++r) EXPECT_EQ(errors[r], error) << "rank " << r;
}

// Both groups of a test have the same name: the broken one must not stand in the new one's way.
void expect_new_group_works(const std::string& name, int world) {
    expect_all(testing::run_processes(world,
                                      [&](int rank) {
                                          Fabric fabric(host_options(name, rank, world));
                                          suite::HostOps ops;
                                          suite::barriers(fabric, ops, 5);
                                      }),
               "");
}

TEST(Disagreement, OnSizeDtypeOrCallFailsOnAllRanksWithOneError) {
    struct Case {
        std::function<void(Fabric&, int)> body;
        std::string part;
    };
    const std::vector<Case> cases = {
        {[](Fabric& f, int r) { SymmetricBuffer b(f, r == 1 ? 4096 : 8192); },
         "rank 1 calls symmetric_buffer(bytes=4096, dtype=u8)"},
        {[](Fabric& f, int r) { SymmetricBuffer b(f, 64, r == 2 ? DType::kF32 : DType::kF16); },
         "rank 2 calls symmetric_buffer(bytes=64, dtype=f32)"},
        {[](Fabric& f, int r) {
             StitchedOptions o = small_tensor(3);
             o.rows = {2304, r == 0 ? 2304 : 2300, 2304};
             StitchedTensor t(f, o);
         },
         "rows=[2304, 2300, 2304]"},
        {[](Fabric& f, int r) {
             if (r == 0)
                 f.agree("one thing");
             else
                 SymmetricBuffer b(f, 64);
         },
         "rank 0 calls agree(one thing)"},
    };
    for (const Case& c : cases) {
        const std::string name = fresh_name();
        const auto errors = testing::run_threads(3, [&](int rank) {
            Fabric fabric(host_options(name, rank, 3));
            try {
                c.body(fabric, rank);
            } catch (const Error& e) {
                // Everyone was heard, so the group is still in step.
                fabric.agree("after");
                throw;
            }
        });
        EXPECT_THAT(errors[0], HasSubstr("the ranks disagree"));
        EXPECT_THAT(errors[0], HasSubstr(c.part));
        expect_all(errors, errors[0]);
    }
}

TEST(Disagreement, AFailureOnOneRankIsEveryonesError) {
    const std::string name = fresh_name();
    const auto errors = testing::run_threads(2, [&](int rank) {
        Fabric fabric(host_options(name, rank, 2));
        // More address space than there is: the reservation fails on rank 1 alone.
        SymmetricBuffer b(fabric, 64, DType::kU8, rank == 1 ? std::size_t{1} << 60 : 0);
    });
    EXPECT_THAT(errors[0], HasSubstr("rank 1: cannot reserve address space"));
    expect_all(errors, errors[0]);
}

// Device-side order of calls: each rank's own sequence is fine, but they differ.
TEST(Disagreement, OnTheOrderOfStreamCallsIsNamedWithoutWaitingOut) {
    struct Case {
        const char* name;
        std::function<void(Fabric&, StitchedTensor&, int)> body;
    };
    const std::vector<Case> cases = {
        {"other buffer first",
         [](Fabric&, StitchedTensor& t, int r) {
             for (int b : {r, 1 - r}) {
                 t.begin(b);
                 t.publish(b);
                 t.acquire(b);
             }
         }},
        {"barrier against call",
         [](Fabric& f, StitchedTensor& t, int r) {
             if (r == 0) {
                 f.barrier();
             } else {
                 t.begin(0);
                 t.publish(0);
                 t.acquire(0);
             }
         }},
    };
    for (const Case& c : cases) {
        const std::string name = fresh_name();
        const auto start = std::chrono::steady_clock::now();
        const auto errors = testing::run_threads(2, [&](int rank) {
            Fabric fabric(host_options(name, rank, 2));
            StitchedTensor tensor(fabric, small_tensor(2));
            c.body(fabric, tensor, rank);
            fabric.synchronize();
        });
        for (const std::string& e : errors)
            EXPECT_THAT(e, HasSubstr("is in another call")) << c.name;
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15)) << c.name;
    }
}

TEST(BrokenGroup, AWaitRunsOutAndEverybodyHearsTheSameReason) {
    const std::string name = fresh_name();
    std::atomic<bool> done = false;
    const auto errors = testing::run_threads(3, [&](int rank) {
        FabricOptions options = quick_options(name, rank, 3);
        Fabric fabric(options);
        StitchedTensor tensor(fabric, small_tensor(3));
        suite::HostOps ops;
        suite::one_call(fabric, ops, tensor, 0, 1);
        if (rank == 2) {
            // Stays alive and silent until the others have given up.
            while (!done) std::this_thread::yield();
            fabric.barrier();
            fabric.check();
            return;
        }
        tensor.begin(1);
        suite::store_columns(fabric, ops, tensor, 1, 2);
        tensor.publish(1);
        tensor.acquire(1);
        const std::size_t words = tensor.layout().chunk_bytes[rank] / 4;
        SUITE_REQUIRE(ops.not_poison(rank, tensor.receive(1, rank), words) == 0);
        done = true;
        SUITE_REQUIRE(fabric.failure().has_value());
        // Later calls store nothing: the abandoned buffer of the peers stays as it is.
        fabric.barrier();
    });
    EXPECT_THAT(errors[0], HasSubstr("rank 2: no signal for"));
    EXPECT_THAT(errors[0], HasSubstr("within 150 ms"));
    expect_all(errors, errors[0]);
    expect_new_group_works(name, 3);
}

TEST(BrokenGroup, CallsAfterTheBreakStoreNothingAndSpoilTheirOutput) {
    const std::string name = fresh_name();
    std::atomic<bool> done = false;
    const auto errors = testing::run_threads(2, [&](int rank) {
        Fabric fabric(quick_options(name, rank, 2));
        StitchedTensor tensor(fabric, small_tensor(2));
        if (rank == 1) {
            while (!done) std::this_thread::yield();
            return;
        }
        struct Release {
            std::atomic<bool>& flag;
            ~Release() { flag = true; }
        } release{done};
        fabric.barrier();
        SUITE_REQUIRE(fabric.failure()->kind == FailureKind::kTimeout);
        SUITE_REQUIRE(fabric.failure()->ranks == 0b10);
        suite::HostOps ops;
        const std::size_t words = tensor.layout().chunk_bytes[0] / 4;
        SUITE_REQUIRE(ops.not_poison(0, tensor.receive(0, 0), words) == words);
        bool thrown = false;
        try {
            tensor.acquire(0);
        } catch (const Error& e) {
            thrown = e.kind() == ErrorKind::kTimedOut;
        }
        SUITE_REQUIRE(thrown);
        SUITE_REQUIRE(ops.not_poison(0, tensor.receive(0, 0), words) == 0);
        for (int again = 0; again < 2; ++again) {
            try {
                tensor.begin(0);
            } catch (const Error&) {
                continue;
            }
            SUITE_REQUIRE(!"begin on a broken group must throw");
        }
    });
    expect_all(errors, "");
}

TEST(BrokenGroup, TrapEndsTheProcessWhenAskedFor) {
    const std::string name = fresh_name();
    Processes processes(2, [&](int rank) {
        FabricOptions options = quick_options(name, rank, 2);
        options.trap_on_timeout = rank == 0;
        Fabric fabric(options);
        if (rank == 0) fabric.barrier();
        // Rank 1 holds the group open; its parent kills it.
        Processes::mark();
        ::pause();
    });
    ASSERT_TRUE(processes.wait_mark(1));
    EXPECT_EQ(processes.finish(0), "crashed");
    processes.kill(1);
    EXPECT_EQ(processes.finish(1), "killed");
}

TEST(SetUp, ARankThatNeverComesIsNamed) {
    const std::string name = fresh_name();
    const auto errors = testing::run_threads(3, [&](int rank) {
        if (rank == 1) return;
        FabricOptions options = host_options(name, rank, 3);
        options.setup_timeout = std::chrono::milliseconds(300);
        Fabric fabric(options);
    });
    EXPECT_EQ(errors[0], "rank 1: did not arrive within 300 ms");
    EXPECT_EQ(errors[2], errors[0]);
    expect_new_group_works(name, 3);
}

TEST(SetUp, GroupsOfDifferentSizesOrRanksAreRefused) {
    std::string name = fresh_name();
    auto errors = testing::run_threads(2, [&](int rank) {
        FabricOptions options = host_options(name, rank, rank == 0 ? 2 : 4);
        options.setup_timeout = std::chrono::milliseconds(500);
        Fabric fabric(options);
    });
    EXPECT_THAT(errors[0], HasSubstr("it says rank 1 of 4, rank 0 says 2"));
    expect_all(errors, errors[0]);

    name = fresh_name();
    errors = testing::run_threads(2, [&](int) {
        FabricOptions options = host_options(name, 0, 2);
        options.setup_timeout = std::chrono::milliseconds(500);
        Fabric fabric(options);
    });
    EXPECT_THAT(errors[0] + errors[1], HasSubstr("is taken"));
}

TEST(SetUp, FallsBackTogetherWithAReason) {
    const std::string name = fresh_name();
    const auto errors = testing::run_threads(2, [&](int rank) {
        FabricOptions options = host_options(name, rank, 2);
        options.backend = Backend::kProcess;
        // No machine has this many devices, so the reason is the same with and without a driver.
        options.devices = {100000};
        options.allow_fallback = true;
        Fabric fabric(options);
        SUITE_REQUIRE(fabric.backend() == Backend::kHost);
        SUITE_REQUIRE(!fabric.fallback_reason().empty());
        suite::HostOps ops;
        suite::symmetric_buffer(fabric, ops);
        throw std::runtime_error(fabric.fallback_reason());
    });
    EXPECT_THAT(errors[0], HasSubstr("rank 0: "));
    expect_all(errors, errors[0]);
}

TEST(SetUp, WithoutFallbackTheMissingCapabilityIsEveryonesError) {
    const std::string name = fresh_name();
    const auto errors = testing::run_threads(2, [&](int rank) {
        FabricOptions options = host_options(name, rank, 2);
        options.backend = Backend::kProcess;
        options.devices = {100000};
        try {
            Fabric fabric(options);
        } catch (const Error& e) {
            SUITE_REQUIRE(e.kind() == ErrorKind::kUnsupported);
            throw;
        }
    });
    EXPECT_NE(errors[0], "");
    expect_all(errors, errors[0]);
}

std::size_t open_descriptors() {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator("/proc/self/fd"))
        ++count;
    return count;
}

std::size_t mapped_bytes() {
    std::ifstream statm("/proc/self/statm");
    std::size_t pages = 0;
    statm >> pages;
    return pages * 4096;
}

TEST(Leaks, BuffersComeAndGoWithoutATrace) {
    const std::string name = fresh_name();
    const auto errors = testing::run_processes(2, [&](int rank) {
        Fabric fabric(host_options(name, rank, 2));
        auto once = [&] {
            SymmetricBuffer buffer(fabric, 3 * fabric.page_bytes());
            buffer.grow(5 * fabric.page_bytes());
            StitchedOptions options = small_tensor(2);
            options.buffers = 16;  // more than half of a group's: they must be given back
            StitchedTensor tensor(fabric, options);
        };
        once();
        const std::size_t descriptors = open_descriptors();
        const std::size_t memory = mapped_bytes();
        for (int i = 0; i < 100; ++i) once();
        SUITE_REQUIRE(open_descriptors() == descriptors);
        // The heap may grow a little; one leaked mapping would be 2 MiB a round.
        SUITE_REQUIRE(mapped_bytes() < memory + (std::size_t{8} << 20));
    });
    expect_all(errors, "");
}

// 600 allocations a rank, page by page, in a process that may have 256 descriptors.
TEST(Descriptors, TravelInBatchesThatFitTheLimit) {
    const std::string name = fresh_name();
    const auto errors = testing::run_processes(3, [&](int rank) {
        const rlimit limit{256, 256};
        SUITE_REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
        FabricOptions fabric_options = host_options(name, rank, 3);
        fabric_options.host_page_bytes = 4096;
        Fabric fabric(fabric_options);
        StitchedOptions options;
        options.order = ChunkOrder::kPages;
        options.rows = {600, 601, 599};
        options.row_bytes = 4080;
        options.buffers = 1;
        const std::size_t descriptors = open_descriptors();
        StitchedTensor tensor(fabric, options);
        SUITE_REQUIRE(open_descriptors() == descriptors);
        SUITE_REQUIRE(tensor.layout().segments.size() >= 1797);
        suite::HostOps ops;
        suite::one_call(fabric, ops, tensor, 0, 1);
        fabric.barrier();
        fabric.synchronize();
    });
    expect_all(errors, "");
}

}  // namespace
}  // namespace xstage::fabric
