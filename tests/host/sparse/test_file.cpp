#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "sparse/safetensors.hpp"
#include "temporary_directory.hpp"
#include "xstage/error.hpp"
#include "xstage/sparse/file.hpp"

namespace xstage::sparse {
namespace {

constexpr TokenLayout kLayout{77, 2, 8, 19};  // 381 rows, 3 blocks

/// Two layers, two steps, four query heads and two key heads of random numbers.
TensorFile dump(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 1.5F);
    TensorFile file;
    for (const std::string step :
         {"layers.0.steps.0.", "layers.0.steps.1.", "layers.1.steps.0.", "layers.1.steps.1."}) {
        for (const auto& [name, heads] : {std::pair<std::string, std::int64_t>{"q", 4}, {"k", 2}}) {
            std::vector<float> values(static_cast<std::size_t>(kLayout.rows() * heads * 16));
            for (float& x : values) x = normal(random);
            file.tensors[step + name] = {"F32", {kLayout.rows(), heads, 16}, bytes_of(values)};
        }
    }
    return file;
}

void expect_refused(const std::string& content, const std::string& why) {
    try {
        (void)parse_tensors(content, "f");
        ADD_FAILURE() << "accepted: " << why;
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
        EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
}

TEST(Safetensors, ComeBackByteByByte) {
    TensorFile file = dump(1);
    file.metadata["note"] = "of a test";
    file.tensors["empty"] = {"U32", {0, 4}, ""};
    const std::string content = dump_tensors(file);
    std::uint64_t length = 0;
    content.copy(reinterpret_cast<char*>(&length), 8);
    EXPECT_EQ((8 + length) % 8, 0U);
    const TensorFile back = parse_tensors(content, "f");
    EXPECT_EQ(back.metadata, file.metadata);
    ASSERT_EQ(back.tensors.size(), file.tensors.size());
    for (const auto& [name, tensor] : file.tensors) {
        EXPECT_EQ(back.tensors.at(name).shape, tensor.shape);
        EXPECT_EQ(back.tensors.at(name).bytes, tensor.bytes);
    }
}

TEST(Safetensors, HalvesAreReadAsFloats) {
    const Tensor half{"F16", {2}, bytes_of(std::vector<std::uint16_t>{0x3c00, 0xc000})};
    EXPECT_EQ(half.floats(), (std::vector<float>{1, -2}));
    const Tensor brain{"BF16", {2}, bytes_of(std::vector<std::uint16_t>{0x3f80, 0xc000})};
    EXPECT_EQ(brain.floats(), (std::vector<float>{1, -2}));
    EXPECT_THROW((void)Tensor({"U32", {1}, "abcd"}).floats(), Error);
}

TEST(Safetensors, BrokenFilesAreNamed) {
    const auto with = [](const std::string& header, const std::string& data) {
        const std::uint64_t length = header.size();
        return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
    };
    expect_refused("1234", "shorter than");
    expect_refused(with("{}", "").substr(0, 9), "a header of 2 bytes");
    expect_refused(std::string(8, '\xff'), "a header of");
    expect_refused(with("[]", ""), "not an object");
    expect_refused(with(R"({"a":{"dtype":"F32","shape":[1]}})", "abcd"), "two data_offsets");
    expect_refused(with(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "abcd"),
                   "expected dtype");
    expect_refused(with(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", "abcd"),
                   "0 to 8 of 4");
    expect_refused(with(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "abcd"),
                   "its shape needs 8");
    expect_refused(with(R"({"a":{"dtype":"Q9","shape":[1],"data_offsets":[0,4]}})", "abcd"), "Q9");
    expect_refused(
        with(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})",
             "abcd"),
        "extent");
    expect_refused(with(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "abcdefgh"),
                   "gap");
    expect_refused(with(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "abcdef"),
                   "2 bytes behind");
    expect_refused(with(R"({"__metadata__":{"a":1}})", ""), "no string");
}

TEST(MaskFile, CalibrationComesBackFromDiskAndCanBeTuned) {
    const test::TemporaryDirectory directory;
    std::vector<std::string> prompts;
    for (unsigned i = 0; i < 2; ++i) {
        prompts.push_back(directory.file("prompt" + std::to_string(i)));
        write_tensors(prompts.back(), dump(i + 1));
    }
    MaskFile file = calibrate(prompts, kLayout);
    EXPECT_EQ(file.prompts, 2);
    EXPECT_EQ(file.steps, 2);
    ASSERT_EQ(file.layers.size(), 2U);
    ASSERT_EQ(file.samples.size(), 4U);

    // One head's thresholds, from the masses of both prompts and steps.
    WestCalibration west(1, kLayout);
    for (unsigned i = 0; i < 2; ++i) {
        const TensorFile d = dump(i + 1);
        for (const std::string step : {"layers.1.steps.0.", "layers.1.steps.1."}) {
            const auto q = d.tensors.at(step + "q").floats();
            const auto k = d.tensors.at(step + "k").floats();
            west.add(0, block_mass({q.data() + 3 * 16, 4 * 16}, {k.data() + 1 * 16, 2 * 16},
                                   kLayout.rows(), 16));
        }
    }
    for (std::int64_t u = 0; u < 3; ++u) {
        for (std::int64_t v = 0; v < 3; ++v) {
            EXPECT_EQ(file.layers[1].at(3, u, v), west.map().at(0, u, v));
        }
    }

    file.budgets = tune(file.layers, file.samples, file.steps, 0.99);
    const std::string path = directory.file("map.safetensors");
    write_mask_file(path, file);
    const MaskFile back = read_mask_file(path);
    EXPECT_EQ(back.prompts, 2);
    EXPECT_EQ(back.layers[0].layout(), kLayout);
    EXPECT_EQ(back.layers[1].remainders(), file.layers[1].remainders());
    EXPECT_EQ(back.samples[3].mass, file.samples[3].mass);
    EXPECT_EQ(back.samples[3].rows, file.samples[3].rows);
    EXPECT_EQ(back.budgets->top_p, file.budgets->top_p);
    EXPECT_EQ(back.budgets->schedule.strength, file.budgets->schedule.strength);
    EXPECT_EQ(back.budgets->density, file.budgets->density);
}

TEST(MaskFile, MasksComeBackAndOtherFilesAreRefused) {
    const test::TemporaryDirectory directory;
    BlockMask mask(2, 3, 300, 5000);
    mask.set(1, 2, 2, 39);
    const std::string path = directory.file("mask.safetensors");
    write_block_mask(path, mask);
    EXPECT_EQ(read_block_mask(path), mask);
    EXPECT_THROW((void)read_mask_file(path), Error);
    EXPECT_THROW((void)read_mask_file(directory.file("none")), Error);
}

TEST(MaskFile, DumpsThatDoNotFitAreNamed) {
    const test::TemporaryDirectory directory;
    const std::string good = directory.file("good");
    const std::string bad = directory.file("bad");
    write_tensors(good, dump(1));
    const auto expect_named = [&](const TensorFile& file, const std::string& why) {
        write_tensors(bad, file);
        try {
            (void)calibrate({good, bad}, kLayout);
            ADD_FAILURE() << "accepted: " << why;
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
            EXPECT_TRUE(std::string(error.what()).starts_with(bad)) << error.what();
        }
    };
    TensorFile file = dump(2);
    file.tensors.erase("layers.1.steps.1.k");
    expect_named(file, "7 tensors");
    file = dump(2);
    file.tensors["layers.1.steps.1.k"].shape = {kLayout.rows(), 1, 32};
    expect_named(file, "k 1 of 32");
    file = dump(2);
    std::vector<float> values(static_cast<std::size_t>(kLayout.rows() * 4 * 16), NAN);
    file.tensors["layers.0.steps.1.q"].bytes = bytes_of(values);
    expect_named(file, "score of key 0 is");
    EXPECT_THROW((void)calibrate({good}, {0, 2, 8, 19}), Error);
    EXPECT_THROW((void)calibrate({}, kLayout), Error);
}

TEST(Picture, ShowsEachRunOfBlocksOnceAndTheKeptOnesInBlue) {
    const TokenLayout layout{0, 1, 2, 128};  // 2 x 2 blocks
    const ThresholdMap map(1, layout, {0, 0x3c00, 0x3c00, 0});
    const std::string svg = map_svg(map, 0, 0.5F, "a head");
    const auto count = [&](const std::string& what) {
        std::size_t n = 0;
        for (std::size_t at = svg.find(what); at != std::string::npos; at = svg.find(what, at + 1))
            ++n;
        return n;
    };
    EXPECT_EQ(count("fill=\"#2458b3\""), 2U);
    EXPECT_EQ(count("a head"), 1U);
    EXPECT_THROW((void)map_svg(map, 1, {}, ""), Error);
}

}  // namespace
}  // namespace xstage::sparse
