#include "core/csv.hpp"

#include <gtest/gtest.h>

#include "expect_error.hpp"

namespace xstage::core {
namespace {

using test::bad_input;
using testing::HasSubstr;

TEST(Csv, ReadsColumnsByName) {
    const auto table = CsvTable::parse("a,b\r\n1,x\n\n2.5,y", "t.csv");
    ASSERT_EQ(table.rows(), 2u);
    EXPECT_EQ(table.integer(0, "a"), 1);
    EXPECT_DOUBLE_EQ(table.number(1, "a"), 2.5);
    EXPECT_EQ(table.text(1, "b"), "y");
    EXPECT_FALSE(table.has("c"));
}

// A table of a few bytes lives in the string object itself; moving it must not move the cells.
TEST(Csv, SurvivesBeingMoved) {
    auto table = CsvTable::parse("a\n7", "t.csv");
    const auto moved = std::move(table);
    EXPECT_EQ(moved.integer(0, "a"), 7);
}

TEST(Csv, NamesTheLineOfEveryFault) {
    const auto table = CsvTable::parse("n,t\n1,\n\n-1,nan\n2.5,1e999\n", "t.csv");
    EXPECT_THAT(bad_input([&] { table.number(1, "n"); }), HasSubstr("t.csv:4: column 'n'"));
    EXPECT_THAT(bad_input([&] { table.number(1, "t"); }), HasSubstr("found 'nan'"));
    EXPECT_THAT(bad_input([&] { table.number(0, "t"); }), HasSubstr("t.csv:2"));
    EXPECT_THAT(bad_input([&] { table.number(2, "t"); }), HasSubstr("t.csv:5"));
    EXPECT_THAT(bad_input([&] { table.integer(2, "n"); }), HasSubstr("a whole number"));
    EXPECT_THAT(bad_input([&] { table.number(0, "z"); }), HasSubstr("expected a column 'z'"));
}

TEST(Csv, RefusesRaggedAndUnnamedTables) {
    EXPECT_THAT(bad_input([] { CsvTable::parse("a,b\n1\n", "t.csv"); }),
                HasSubstr("t.csv:2: expected 2 cells as in the header, found 1"));
    EXPECT_THAT(bad_input([] { CsvTable::parse("a,a\n1,2\n", "t.csv"); }),
                HasSubstr("found twice: a"));
    EXPECT_THAT(bad_input([] { CsvTable::parse("", "t.csv"); }), HasSubstr("header"));
    EXPECT_THAT(bad_input([] { CsvTable::parse("a,\n1,2\n", "t.csv"); }), HasSubstr("header"));
}

TEST(Csv, ShowsControlCharactersAsQuestionMarks) {
    const auto table = CsvTable::parse("a\n\x1b[2J\n", "t.csv");
    EXPECT_THAT(bad_input([&] { table.number(0, "a"); }), HasSubstr("found '?[2J'"));
}

}  // namespace
}  // namespace xstage::core
