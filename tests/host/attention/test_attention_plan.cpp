// What of the attention plan needs no GPU: checks of the arguments, and the choice of an instance.

#include <gtest/gtest.h>

#include <functional>

#include "attention/choice.hpp"
#include "expect_error.hpp"
#include "xstage/attention.hpp"
#include "xstage/error.hpp"

namespace xstage {
namespace {

AttentionArguments valid() {
    static int memory;  // never read: the checks come before any device is asked for
    AttentionArguments a;
    a.batches = 1;
    a.heads = a.kv_heads = 4;
    a.q_rows = a.kv_rows = 256;
    a.q = a.k = a.v = {&memory, 256 * 512, 512, 128};
    a.out = {{a.q, 256}};
    return a;
}

TEST(AttentionPlan, MisuseIsNamed) {
    const std::vector<std::pair<std::string, std::function<void(AttentionArguments&)>>> cases = {
        {"head_dim", [](AttentionArguments& a) { a.head_dim = 96; }},
        {"multiple of kv_heads", [](AttentionArguments& a) { a.kv_heads = 3; }},
        {"kv_heads", [](AttentionArguments& a) { a.kv_heads = 0; }},
        {"q_rows must be", [](AttentionArguments& a) { a.q_rows = std::int64_t{1} << 31; }},
        {"kv_rows must be", [](AttentionArguments& a) { a.kv_rows = -1; }},
        {"scale", [](AttentionArguments& a) { a.scale = -1; }},
        {"q_rows rows together", [](AttentionArguments& a) { a.out[0].rows = 255; }},
        {"1 to 8 chunks", [](AttentionArguments& a) { a.out.clear(); }},
        {"rank", [](AttentionArguments& a) { a.rank = 1; }},
        {"share their batches", [](AttentionArguments& a) {
             a.batches = 2;
             a.k.stride_batch = 0;
         }}};
    for (const auto& [message, spoil] : cases) {
        AttentionArguments a = valid();
        spoil(a);
        try {
            const AttentionPlan plan(a);
            ADD_FAILURE() << "accepted: " << message;
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
            EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
        }
    }
}

using attention::all_instances;
using attention::Instance;
using attention::MaskKind;

TEST(AttentionChoice, EveryTypeHeadSizeAndMaskHasAnInstance) {
    for (const AttentionType type : {AttentionType::kBf16, AttentionType::kFp16}) {
        for (const int head_dim : {64, 128}) {
            for (const MaskKind mask : {MaskKind::kDense, MaskKind::kCausal}) {
                const Instance& i =
                    attention::choose({type, head_dim, mask, 4096, 4096, 24}, 132, "");
                EXPECT_EQ(i.type, type);
                EXPECT_EQ(i.head_dim, head_dim);
                EXPECT_EQ(i.mask, mask);
            }
        }
    }
}

TEST(AttentionChoice, ATallerTileIsTakenWhereItSavesAWave) {
    // 6 heads of 4096 rows: 192 tiles of 128 rows are two waves on 132 SMs, 132 of 192 are one.
    const AttentionTypeAndShape shape{AttentionType::kBf16, 128, MaskKind::kDense, 4096, 4096, 6};
    EXPECT_EQ(attention::choose(shape, 132, "").rows, 192);
}

TEST(AttentionChoice, NamesAreUniqueAndAnUnknownOneIsRefused) {
    for (const Instance& a : all_instances()) {
        for (const Instance& b : all_instances()) {
            EXPECT_TRUE(&a == &b || std::string(a.name) != b.name) << a.name;
        }
    }
    EXPECT_THROW(
        attention::choose({AttentionType::kBf16, 128, MaskKind::kDense, 1, 1, 1}, 132, "no such"),
        Error);
}

TEST(AttentionChoice, InstancesFitTheSharedMemoryOfAnSm) {
    for (const Instance& i : all_instances()) {
        EXPECT_LE(i.shared_bytes, 227U * 1024) << i.name;
    }
}

}  // namespace
}  // namespace xstage
