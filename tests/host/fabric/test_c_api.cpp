#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "groups.hpp"
#include "xstage/xstage.h"

namespace xstage::fabric {
namespace {

using ::testing::HasSubstr;

void ok(int status) {
    if (status != XSTAGE_OK) throw std::runtime_error(xstage_last_error());
}
void require(bool condition, const char* what) {
    if (!condition) throw std::runtime_error(what);
}

xstage_fabric_options c_options(const char* name, int rank, int world) {
    xstage_fabric_options o{};
    o.struct_size = sizeof o;
    o.backend = XSTAGE_BACKEND_HOST;
    o.world = world;
    o.rank = rank;
    o.name = name;
    o.setup_timeout_ms = 20000;
    o.wait_timeout_ms = 20000;
    return o;
}

TEST(CApi, OneCallBetweenTwoRanks) {
    const std::string name = testing::fresh_name();
    const auto errors = testing::run_threads(2, [&](int rank) {
        const xstage_fabric_options options = c_options(name.c_str(), rank, 2);
        xstage_fabric* fabric = nullptr;
        ok(xstage_fabric_create(&options, &fabric));
        require(xstage_fabric_world(fabric) == 2, "world");
        require(std::strcmp(xstage_fabric_fallback_reason(fabric), "") == 0, "fallback");

        const int64_t rows[] = {5, 3};
        xstage_stitched_options stitched{};
        stitched.struct_size = sizeof stitched;
        stitched.padded = 1;
        stitched.rows = rows;
        stitched.row_bytes = 3000;
        stitched.dtype = XSTAGE_BF16;
        xstage_stitched_tensor* tensor = nullptr;
        ok(xstage_stitched_tensor_create(fabric, &stitched, &tensor));
        xstage_stitched_layout layout{};
        ok(xstage_stitched_tensor_layout(tensor, &layout));
        require(layout.row_stride == 4096, "stride: the smallest divisor of 2 MiB above 3000");

        void* range = nullptr;
        void* receive = nullptr;
        size_t offset = 0;
        ok(xstage_stitched_tensor_range(tensor, 1, &range));
        ok(xstage_stitched_tensor_receive(tensor, 1, rank, &receive));
        ok(xstage_stitched_tensor_offset(tensor, 1 - rank, 2, &offset));
        ok(xstage_stitched_tensor_begin(tensor, 1, nullptr, 0));
        static_cast<char*>(range)[offset + 7] = static_cast<char>('a' + rank);
        ok(xstage_stitched_tensor_publish(tensor, 1, nullptr, 0));
        ok(xstage_stitched_tensor_acquire(tensor, 1, nullptr, 0));
        require(static_cast<char*>(receive)[2 * 4096 + 7] == 'a' + 1 - rank, "the peer's byte");
        ok(xstage_fabric_synchronize(fabric, nullptr, 0));
        ok(xstage_fabric_barrier(fabric, nullptr, 0));
        xstage_stitched_tensor_destroy(tensor);

        xstage_symmetric_buffer* buffer = nullptr;
        ok(xstage_symmetric_buffer_create(fabric, 100, XSTAGE_F32, 0, &buffer));
        ok(xstage_symmetric_buffer_grow(buffer, size_t{5} << 20));
        void* peer = nullptr;
        void* own = nullptr;
        ok(xstage_symmetric_buffer_at(buffer, 1 - rank, &peer));
        ok(xstage_symmetric_buffer_at(buffer, rank, &own));
        static_cast<char*>(peer)[4 << 20] = static_cast<char>('x' + rank);
        ok(xstage_fabric_barrier(fabric, nullptr, 0));
        require(static_cast<char*>(own)[4 << 20] == 'x' + 1 - rank,
                "the peer's byte in the grown part");
        ok(xstage_fabric_barrier(fabric, nullptr, 0));
        xstage_symmetric_buffer_destroy(buffer);
        xstage_fabric_destroy(fabric);
    });
    for (const std::string& e : errors) EXPECT_EQ(e, "");
}

TEST(CApi, FailuresHaveANumberAndWordsOfTheirThread) {
    EXPECT_EQ(xstage_fabric_check(nullptr), XSTAGE_BAD_INPUT);
    EXPECT_THAT(xstage_last_error(), HasSubstr("fabric must not be NULL"));
    std::thread([] { EXPECT_STREQ(xstage_last_error(), ""); }).join();

    xstage_fabric* fabric = nullptr;
    xstage_fabric_options options = c_options("x", 0, 99);
    EXPECT_EQ(xstage_fabric_create(&options, &fabric), XSTAGE_BAD_INPUT);
    EXPECT_THAT(xstage_last_error(), HasSubstr("not 99"));
    options = c_options("x", 0, 1);
    options.backend = 7;
    EXPECT_EQ(xstage_fabric_create(&options, &fabric), XSTAGE_BAD_INPUT);
    options = c_options("x", 0, 1);
    options.struct_size = sizeof options + 8;
    EXPECT_EQ(xstage_fabric_create(&options, &fabric), XSTAGE_BAD_INPUT);
    EXPECT_EQ(fabric, nullptr);

    const std::string name = testing::fresh_name();
    options = c_options(name.c_str(), 0, 2);
    options.setup_timeout_ms = 50;
    EXPECT_EQ(xstage_fabric_create(&options, &fabric), XSTAGE_TIMED_OUT);
    EXPECT_STREQ(xstage_last_error(), "rank 1: did not arrive within 50 ms");
}

}  // namespace
}  // namespace xstage::fabric
