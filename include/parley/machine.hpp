#pragma once
/// The capabilities of a rank's machine, by the names that configs ask for (`op_config::requirements`), and the masks with which the user
/// hides some of them.
///
///     machine m = machine::with_gpu(driver, /*device=*/0);
///     m.mask(parse_masks("2:sm_90,3:sm_90,nvlink").value(), /*self=*/2);
///     m.has("sm_90")                 // an error: this rank must do without it
///
/// | capability | the machine has it if |
/// |---|---|
/// | `gpu` | the job was given a GPU |
/// | `sm_75`, `sm_90`, … | the GPU has that compute capability or a newer one |
/// | `cuda_12`, `cuda_13.1`, … | the driver can run programs of that CUDA version |
/// | `nccl_2`, `nccl_2.28`, … | the job was given NCCL (`job_options::planes`) of that version or a newer one |
/// | `memory_40`, `memory_79`, … | the GPU has at least so many whole GiB of memory: an H100 of 80 GB has 79 |
/// | `peer_access`, `nvlink` | the GPU reaches another GPU's memory (`nvlink`: over NVLink), or this process sees no other GPU |
/// | `ipc` | the driver can give the GPU's memory to other processes |
/// | `nccl`, `ucx` | the job has a GPU. The users of NCCL and UCX check whether NCCL is found and whether UCX accepts the GPU's memory |
///
/// No other name is a capability. A config that requires `sm90` fails with an error that suggests the nearest names (`is_capability`). A
/// config's own name can also be masked.
///
/// Masks are the same on all ranks. A mask without a rank is for all ranks. A mask of `sm_90` or `nccl_2.28` also hides all newer versions,
/// and a mask of `memory_40` also hides all larger memories. So a machine can act as an older or a smaller one. A mask of `nccl` hides all
/// of its versions. Results depend on the masks (validator PARLEY_MASK). A default-constructed `machine` has everything that is not masked;
/// virtual ranks have one.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::transports {
class cuda_driver;
class nccl_library;
}  // namespace parley::transports

namespace parley::ops {

struct masked_capability {
  std::optional<runtime::rank_id> rank{};  ///< empty: all ranks
  std::string name;
};

/// Parses a text such as `2:sm_90,nccl`. The error names the wrong entry and the reason.
runtime::result<std::vector<masked_capability>> parse_masks(std::string_view text);
/// The text of the masks; it does not depend on their order.
std::string text_of(const std::vector<masked_capability>& masks);
/// The names that are masked on rank `self`; empty: none.
std::string text_of(const std::vector<masked_capability>& masks, runtime::rank_id self);

class machine {
 public:
  /// The capabilities of the table that have no number, and the prefixes of those that have one.
  static constexpr std::array named{"gpu", "peer_access", "nvlink", "ipc", "nccl", "ucx"};
  static constexpr std::array<std::string_view, 4> numbered{"sm_", "cuda_", "nccl_", "memory_"};
  /// True if the name is a capability with a number: `sm_90` is, but not `nccl_ours`, which may be a config's own name.
  static bool is_numbered(std::string_view name);
  /// Checks that a config may require this name. The error suggests the nearest names.
  static runtime::result<> is_capability(std::string_view name);
  /// All capabilities in words, with examples of those that have a number.
  static std::string what_there_is();
  static machine without_gpu();
  /// `nccl`: the NCCL library of the job; null: none.
  static machine with_gpu(const transports::cuda_driver& gpu, int device,
                          const transports::nccl_library* nccl = nullptr);
  void mask(const std::vector<masked_capability>& masks, runtime::rank_id self);
  /// Checks that the machine has this capability. The error says why not.
  runtime::result<> has(std::string_view capability) const;
  /// Checks that a config of this name may run here. The error says why not. `config` is never read as a capability with a version, even if
  /// it looks like one.
  runtime::result<> lets_run(std::string_view config) const;

 private:
  void lacks(std::string_view capability, std::string why) { lacking_.emplace_back(capability, std::move(why)); }
  std::vector<std::string> masked_;
  std::vector<std::pair<std::string, std::string>> lacking_;  // names and reasons
  struct version {
    std::string_view prefix;  // of the capabilities' names
    std::int64_t has;
    std::string who;
  };
  std::vector<version> versions_;
};

}  // namespace parley::ops
