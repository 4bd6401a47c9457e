#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "expect_error.hpp"
#include "xstage/fabric/launch.hpp"

namespace xstage::fabric {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

LaunchPlace place_in(const Variables& variables) {
    return launch_place([&](const char* name) -> std::optional<std::string> {
        const auto at = variables.find(name);
        return at == variables.end() ? std::nullopt : std::optional(at->second);
    });
}

TEST(LaunchPlace, WithoutALauncherThereIsOneRank) {
    const LaunchPlace place = place_in({{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}});
    EXPECT_EQ(place.world, 1);
    EXPECT_EQ(place.rank, 0);
    EXPECT_EQ(place.launcher, "");
    EXPECT_EQ(place.name, "");
}

TEST(LaunchPlace, TorchrunLeavesItsOwnPortAlone) {
    // Started by torchrun on each of two nodes of a Slurm job, whose own count is that of nodes.
    const LaunchPlace place = place_in({{"RANK", "11"},
                                        {"WORLD_SIZE", "16"},
                                        {"LOCAL_RANK", "3"},
                                        {"MASTER_ADDR", "10.1.2.3"},
                                        {"MASTER_PORT", "29500"},
                                        {"SLURM_PROCID", "1"},
                                        {"SLURM_NTASKS", "2"}});
    EXPECT_EQ(place.launcher, "torchrun");
    EXPECT_EQ(place.rank, 11);
    EXPECT_EQ(place.world, 16);
    EXPECT_EQ(place.local_rank, 3);
    EXPECT_EQ(place.name, "tcp://10.1.2.3:29501");
}

TEST(LaunchPlace, MpirunNeedsAnAddress) {
    Variables v{{"OMPI_COMM_WORLD_RANK", "2"},
                {"OMPI_COMM_WORLD_SIZE", "4"},
                {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}};
    EXPECT_THAT(test::bad_input([&] { place_in(v); }), HasSubstr("XSTAGE_FABRIC_ADDRESS"));
    v["XSTAGE_FABRIC_ADDRESS"] = "head:7000";
    EXPECT_EQ(place_in(v).name, "tcp://head:7000");
    EXPECT_EQ(place_in(v).rank, 2);
    EXPECT_EQ(place_in(v).launcher, "mpirun");
}

TEST(LaunchPlace, PmiIsRead) {
    const LaunchPlace place = place_in({{"PMI_RANK", "1"},
                                        {"PMI_SIZE", "2"},
                                        {"MPI_LOCALRANKID", "1"},
                                        {"XSTAGE_FABRIC_ADDRESS", "[fd00::1]:7000"}});
    EXPECT_EQ(place.launcher, "PMI");
    EXPECT_EQ(place.local_rank, 1);
    EXPECT_EQ(place.name, "tcp://[fd00::1]:7000");
}

TEST(LaunchPlace, SlurmsFirstHostIsWhereRankZeroRuns) {
    Variables v{{"SLURM_PROCID", "8"}, {"SLURM_NTASKS", "16"}, {"SLURM_LOCALID", "0"}};
    const std::pair<const char*, const char*> lists[] = {
        {"node7", "node7"},     {"node7,node9", "node7"},        {"node[07-09]", "node07"},
        {"node[3,5]", "node3"}, {"rack[1-2]n,x[5-6]", "rack1n"}, {"a,b[1-2]", "a"}};
    for (const auto& [list, host] : lists) {
        v["SLURM_STEP_NODELIST"] = list;
        EXPECT_EQ(place_in(v).name, std::string("tcp://") + host + ":29511");
    }
    v.erase("SLURM_STEP_NODELIST");
    v["SLURM_JOB_NODELIST"] = "n[";
    test::bad_input([&] { place_in(v); });
}

TEST(LaunchPlace, NumbersThatAreNoneAreRefused) {
    const Variables good{
        {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}};
    EXPECT_EQ(place_in(good).rank, 1);
    for (const auto& [name, value] : Variables{
             {"RANK", "-1"}, {"WORLD_SIZE", "0"}, {"MASTER_PORT", "http"}, {"LOCAL_RANK", "1x"}}) {
        Variables v = good;
        v[name] = value;
        EXPECT_THAT(test::bad_input([&] { place_in(v); }), HasSubstr(name));
    }
    Variables v = good;
    v["RANK"] = "2";
    test::bad_input([&] { place_in(v); });
}

}  // namespace
}  // namespace xstage::fabric
