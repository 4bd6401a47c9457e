#include "xstage/fabric/launch.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "xstage/error.hpp"

namespace xstage::fabric {
namespace {

constexpr int kDefaultPort = 29511;

struct Launcher {
    const char* name;
    const char* rank;
    const char* world;
    const char* local_rank;
};

// torchrun first: it may itself run under Slurm, whose variables then count nodes and not ranks.
constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
};

int number(const char* variable, const std::string& text, int least) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least)
        throw Error(ErrorKind::kBadInput,
                    fmt::format("{} is '{}', not a number from {}", variable, text, least));
    return value;
}

/// The first host of "node[03-05,9],other": "node03".
std::string first_host(const std::string& list) {
    const std::size_t open = list.find('[');
    const std::size_t comma = list.find(',');
    if (open == std::string::npos || comma < open) return list.substr(0, comma);
    const std::size_t end = list.find_first_of(",-]", open);
    const std::size_t close = list.find(']', open);
    if (end == std::string::npos || close == std::string::npos) return "";
    const std::size_t rest = list.find(',', close);
    return list.substr(0, open) + list.substr(open + 1, end - open - 1) +
           list.substr(close + 1, rest == std::string::npos ? rest : rest - close - 1);
}

std::string address(const Environment& environment, const std::string& launcher) {
    if (const auto told = environment("XSTAGE_FABRIC_ADDRESS")) return "tcp://" + *told;
    const auto master = environment("MASTER_ADDR");
    const auto port = environment("MASTER_PORT");
    if (master && port)
        return fmt::format("tcp://{}:{}", *master, number("MASTER_PORT", *port, 1) + 1);
    if (launcher == "Slurm") {
        auto list = environment("SLURM_STEP_NODELIST");
        if (!list) list = environment("SLURM_JOB_NODELIST");
        const std::string host = list ? first_host(*list) : "";
        if (!host.empty()) return fmt::format("tcp://{}:{}", host, kDefaultPort);
    }
    throw Error(ErrorKind::kBadInput,
                fmt::format("{} has started several ranks and says no address: set "
                            "XSTAGE_FABRIC_ADDRESS to host:port of rank 0",
                            launcher));
}

}  // namespace

LaunchPlace launch_place(const Environment& environment) {
    for (const Launcher& launcher : kLaunchers) {
        const auto rank = environment(launcher.rank);
        const auto world = environment(launcher.world);
        if (!rank || !world) continue;
        LaunchPlace place;
        place.launcher = launcher.name;
        place.rank = number(launcher.rank, *rank, 0);
        place.world = number(launcher.world, *world, 1);
        if (place.rank >= place.world)
            throw Error(ErrorKind::kBadInput, fmt::format("{} is {} of {} ranks", launcher.rank,
                                                          place.rank, place.world));
        if (const auto local = environment(launcher.local_rank))
            place.local_rank = number(launcher.local_rank, *local, 0);
        if (place.world > 1) place.name = address(environment, place.launcher);
        return place;
    }
    return {};
}

LaunchPlace launch_place() {
    return launch_place([](const char* variable) -> std::optional<std::string> {
        const char* value = std::getenv(variable);
        return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
    });
}

}  // namespace xstage::fabric
