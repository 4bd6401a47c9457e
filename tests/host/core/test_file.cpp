#include "core/file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "expect_error.hpp"
#include "temporary_directory.hpp"

namespace xstage::core {
namespace {

using test::bad_input;
using testing::HasSubstr;

TEST(File, ReplacesInOneStepAndLeavesNothingBeside) {
    const test::TemporaryDirectory directory;
    const std::string path = directory.write("out.json", "old");
    write_file_atomic(path, "new");
    EXPECT_EQ(read_file(path), "new");
    const auto entries = std::filesystem::directory_iterator(directory.file(""));
    EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0400, 0400u);
}

TEST(File, AFailedWriteLeavesTheOldFileAndNoTemporary) {
    const test::TemporaryDirectory directory;
    std::filesystem::create_directory(directory.file("out"));
    directory.write("out/kept", "x");  // rename over a directory with content fails
    EXPECT_THAT(bad_input([&] { write_file_atomic(directory.file("out"), "new"); }),
                HasSubstr("cannot write"));
    const auto entries = std::filesystem::directory_iterator(directory.file(""));
    EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
}

TEST(File, SaysWhatIsWrongWithAPath) {
    const test::TemporaryDirectory directory;
    EXPECT_THAT(bad_input([&] { read_file(directory.file("none")); }), HasSubstr("cannot open"));
    EXPECT_THAT(bad_input([&] { read_file(directory.file("")); }), HasSubstr("is a directory"));
    const std::string big = directory.write("big", "0123456789");
    EXPECT_THAT(bad_input([&] { read_file(big, 9); }), HasSubstr("larger than 9 bytes"));
    EXPECT_EQ(read_file(big, 10), "0123456789");
    EXPECT_THAT(bad_input([&] { write_file_atomic(directory.file("no/such/file"), "x"); }),
                HasSubstr("cannot create"));
}

}  // namespace
}  // namespace xstage::core
