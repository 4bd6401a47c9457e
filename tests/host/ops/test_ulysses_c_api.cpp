#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "ulysses_suite.hpp"
#include "xstage/xstage_ulysses.h"

namespace xstage::ulysses {
namespace {

using suite::Case;
using ::testing::HasSubstr;

class UlyssesC : public ::testing::Test {
  protected:
    void SetUp() override {
        xstage_fabric_options o{};
        o.struct_size = sizeof o;
        o.world = 1;
        o.host_page_bytes = 16384;
        ASSERT_EQ(xstage_fabric_create(&o, &fabric_), 0) << xstage_last_error();
    }
    void TearDown() override {
        xstage_ulysses_destroy(attention_);
        xstage_fabric_destroy(fabric_);
    }
    static xstage_ulysses_options options(const std::int64_t* rows) {
        xstage_ulysses_options o{};
        o.struct_size = sizeof o;
        o.batch = 1;
        o.heads_q = 3;
        o.head_dim = 8;
        o.rows_q = rows;
        o.dtype = XSTAGE_BF16;
        return o;
    }
    static xstage_view c_view(const View& v) {
        return {v.data, v.batch_stride, v.row_stride, v.head_stride};
    }

    xstage_fabric* fabric_ = nullptr;
    xstage_ulysses* attention_ = nullptr;
};

TEST_F(UlyssesC, AttendMatchesTheKernelAlone) {
    Problem p;
    p.heads_q = 3;
    p.head_dim = 8;
    p.rows_q = {11};
    Case c(p);
    const suite::Whole w = suite::whole(c, reference_attention);
    const std::int64_t rows[] = {11};
    const xstage_ulysses_options o = options(rows);
    ASSERT_EQ(xstage_ulysses_create(fabric_, &o, &attention_), 0) << xstage_last_error();
    EXPECT_THAT(xstage_ulysses_describe(attention_), HasSubstr("kernel call"));
    std::int32_t q[2], kv[2];
    ASSERT_EQ(xstage_ulysses_heads(attention_, 0, q, kv), 0);
    EXPECT_EQ(q[1], 3);
    xstage_sharded_input in{};
    in.q.image = c_view(c.q.view());
    in.k.image = c_view(c.k.view());
    in.v.image = c_view(c.v.view());
    xstage_ulysses_result r{};
    ASSERT_EQ(xstage_ulysses_attend(attention_, &in, 1, nullptr, 0, &r), 0) << xstage_last_error();
    const View out{r.out.data, r.out.batch_stride, r.out.row_stride, r.out.head_stride};
    suite::HostDevice device;
    EXPECT_EQ(suite::download(device, 0, out, 11, 3, 8, 2), w.out.bytes);
}

TEST_F(UlyssesC, AKernelsFailureIsTheCallsFailure) {
    const std::int64_t rows[] = {4};
    xstage_ulysses_options o = options(rows);
    int calls = 0;
    o.user = &calls;
    o.kernel = [](void* user, const xstage_attention_call* call) {
        ++*static_cast<int*>(user);
        return call->heads_q == 3 && call->rows_kv == 4 ? 17 : 0;
    };
    ASSERT_EQ(xstage_ulysses_create(fabric_, &o, &attention_), 0) << xstage_last_error();
    std::vector<std::uint16_t> data(4 * 3 * 8);
    xstage_gathered_input in{};
    in.q = in.k = in.v = {data.data(), 96, 24, 8};
    xstage_ulysses_result r{};
    EXPECT_NE(xstage_ulysses_attend_and_scatter(attention_, &in, 1, nullptr, 0, &r), 0);
    EXPECT_THAT(xstage_last_error(), HasSubstr("17"));
    EXPECT_EQ(calls, 1);
}

TEST_F(UlyssesC, BadOptionsAreRefusedInWords) {
    const std::int64_t rows[] = {4};
    xstage_ulysses_options o = options(rows);
    o.layout = 9;
    EXPECT_EQ(xstage_ulysses_create(fabric_, &o, &attention_), XSTAGE_BAD_INPUT);
    EXPECT_THAT(xstage_last_error(), HasSubstr("no layout 9"));
    o = options(nullptr);
    EXPECT_EQ(xstage_ulysses_create(fabric_, &o, &attention_), XSTAGE_BAD_INPUT);
    o = options(rows);
    o.struct_size = sizeof o + 8;
    EXPECT_EQ(xstage_ulysses_create(fabric_, &o, &attention_), XSTAGE_BAD_INPUT);
}

/// A kernel that allocates its own result, heads apart: it says where, and that is what is sent on.
TEST_F(UlyssesC, AKernelsOwnResultIsSentOn) {
    static std::vector<std::uint16_t> own;
    const std::int64_t rows[] = {5};
    xstage_ulysses_options o = options(rows);
    o.kernel_returns_packed = 1;
    o.kernel = [](void*, const xstage_attention_call* call) {
        if (call->own_out == nullptr) return 7;
        // [heads, rows, dim]: value 100 * head + row.
        own.resize(static_cast<std::size_t>(call->heads_q * call->rows_q * call->head_dim));
        for (std::int64_t i = 0; i < static_cast<std::int64_t>(own.size()); ++i)
            own[static_cast<std::size_t>(i)] = static_cast<std::uint16_t>(
                100 * (i / (call->rows_q * call->head_dim)) + i / call->head_dim % call->rows_q);
        *call->own_out = {own.data(), 0, call->head_dim, call->rows_q * call->head_dim};
        return 0;
    };
    ASSERT_EQ(xstage_ulysses_create(fabric_, &o, &attention_), 0) << xstage_last_error();
    std::vector<std::uint16_t> x(5 * 3 * 8);
    xstage_sharded_input in{};
    in.q.image = in.k.image = in.v.image = {x.data(), 5 * 3 * 8, 3 * 8, 8};
    xstage_ulysses_result result{};
    ASSERT_EQ(xstage_ulysses_attend(attention_, &in, 1, nullptr, 0, &result), 0)
        << xstage_last_error();
    const auto* out = static_cast<const std::uint16_t*>(result.out.data);
    for (int row = 0; row < 5; ++row)
        for (int head = 0; head < 3; ++head)
            EXPECT_EQ(out[row * result.out.row_stride + head * result.out.head_stride],
                      100 * head + row);
}

TEST_F(UlyssesC, BuiltInKernelsGoByNumber) {
    const std::int64_t rows[] = {5};
    xstage_ulysses_options o = options(rows);
    o.builtin = 99;
    EXPECT_EQ(xstage_ulysses_create(fabric_, &o, &attention_), XSTAGE_BAD_INPUT);
    EXPECT_THAT(xstage_last_error(), HasSubstr("no built-in attention kernel 99"));
    o.builtin = XSTAGE_BUILTIN_REFERENCE;
    EXPECT_EQ(xstage_ulysses_create(fabric_, &o, &attention_), 0) << xstage_last_error();
}

}  // namespace
}  // namespace xstage::ulysses
