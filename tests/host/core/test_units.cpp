#include <gtest/gtest.h>

#include <concepts>
#include <type_traits>

#include "xstage/units.hpp"

namespace xstage {
namespace {

template <class A, class B>
concept Addable = requires(A a, B b) {
    a + b;
};
template <class A, class B>
concept Comparable = requires(A a, B b) {
    a < b;
};

// The two clocks and the sizes are kept apart at compile time.
static_assert(Addable<Cycles, Cycles> && Addable<Nanoseconds, Nanoseconds>);
static_assert(!Addable<Cycles, Nanoseconds>);
static_assert(!Addable<Bytes, Nanoseconds>);
static_assert(!Addable<BytesPerCycle, BytesPerNanosecond>);
static_assert(!Comparable<Cycles, Nanoseconds>);
static_assert(!std::convertible_to<double, Bytes>);
static_assert(!std::convertible_to<Cycles, double>);
static_assert(!std::convertible_to<Cycles, Nanoseconds>);

// A clock rate is the only way across, and the results have the right dimension.
static_assert(std::same_as<decltype(Cycles{} / GigaHertz{1}), Nanoseconds>);
static_assert(std::same_as<decltype(Nanoseconds{} * GigaHertz{}), Cycles>);
static_assert(std::same_as<decltype(Bytes{} / BytesPerNanosecond{1}), Nanoseconds>);
static_assert(std::same_as<decltype(BytesPerCycle{} * GigaHertz{}), BytesPerNanosecond>);
static_assert(std::same_as<decltype(Bytes{} / Bytes{1}), double>);

TEST(Units, ConvertByTheClock) {
    EXPECT_DOUBLE_EQ((Cycles{19800} / GigaHertz{1.98}).value(), 10000);
    EXPECT_DOUBLE_EQ((Bytes{4.5e9} / BytesPerNanosecond{450}).value(), 1e7);  // 4.5 GB take 10 ms
}

TEST(Units, PositivePart) {
    EXPECT_EQ(positive_part(Nanoseconds{-3}), Nanoseconds{0});
    EXPECT_EQ(positive_part(Nanoseconds{3}), Nanoseconds{3});
}

TEST(Units, Literals) {
    using namespace literals;
    EXPECT_EQ(16_KiB, Bytes{16384});
    EXPECT_EQ(4_MiB, Bytes{4194304});
}

}  // namespace
}  // namespace xstage
