#pragma once

#include <functional>
#include <optional>
#include <string>

namespace xstage::fabric {

/// Where a launcher has put this process.
struct LaunchPlace {
    int rank = 0;
    int world = 1;
    int local_rank = 0;    ///< on its machine
    std::string launcher;  ///< "torchrun", "mpirun", "PMI" or "Slurm"; empty: none, a single rank
    std::string name;      ///< FabricOptions::name: "tcp://host:port"; empty for a single rank
};

/// A variable of the environment, or nothing.
using Environment = std::function<std::optional<std::string>(const char* variable)>;

/// Reads what torchrun (RANK, WORLD_SIZE, LOCAL_RANK), Open MPI's mpirun (OMPI_COMM_WORLD_*), MPICH
/// and others by PMI (PMI_RANK, PMI_SIZE, MPI_LOCALRANKID) or Slurm's srun (SLURM_PROCID, ...) have
/// set, in this order. The address is XSTAGE_FABRIC_ADDRESS (host:port), else MASTER_ADDR with the
/// port after MASTER_PORT, which itself is the launcher's, else the first host of Slurm's step with
/// port 29511. Throws Error (kBadInput) for numbers that are none, and for several ranks that have
/// no address.
LaunchPlace launch_place(const Environment& environment);
/// Of this process.
LaunchPlace launch_place();

}  // namespace xstage::fabric
