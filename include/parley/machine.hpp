#pragma once
/// What a rank's machine has, by names that configs ask for (`op_config::requirements`), and what the user tells it to do without.
///
///     machine m = machine::with_gpu(driver, /*device=*/0);
///     m.mask(parse_masks("2:sm_90,3:sm_90,nvlink").value(), /*self=*/2);
///     m.has("sm_90")                 // an error: this rank was told to do without it
///
/// | capability | is there where |
/// |---|---|
/// | `gpu` | the job was given one |
/// | `sm_75`, `sm_90`, … | the GPU's compute capability is that or a newer one |
/// | `cuda_12`, `cuda_13.1`, … | the driver can run programs of that CUDA |
/// | `nccl_2`, `nccl_2.28`, … | the job was given NCCL (`job_options::planes`) of that version or a newer one |
/// | `memory_40`, `memory_79`, … | the GPU has so many whole GiB of memory or more: an H100 of 80 GB has 79 |
/// | `peer_access`, `nvlink` | the GPU reaches the memory of another one, over NVLink; or no other is visible to this process |
/// | `ipc` | other processes may be given the GPU's memory |
/// | `nccl`, `ucx` | the job has a GPU; whether NCCL is found and UCX takes its memory is for those to say who use them |
///
/// No other name is a capability: a config that requires `sm90` is an error that says what comes near (`is_capability`). A config's own
/// name can be masked, too.
///
/// Masks are the same on all ranks; one without a rank is for all. Who hides `sm_90` or `nccl_2.28` hides all newer ones, and who hides
/// `memory_40` all larger ones, so that a machine can stand for an older or a smaller one; who hides `nccl` hides all its versions.
/// Results depend on them (validator PARLEY_MASK). A machine of which nothing is known has all that is not masked, as virtual ranks have.
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
  std::optional<runtime::rank_id> rank{};  ///< none: all of them
  std::string name;
};

/// `2:sm_90,nccl`; the error says what is wrong with which of them.
runtime::result<std::vector<masked_capability>> parse_masks(std::string_view text);
/// The same text for the same masks, in whichever order they were given.
std::string text_of(const std::vector<masked_capability>& masks);
/// Of what one rank is told to do without; empty: of nothing.
std::string text_of(const std::vector<masked_capability>& masks, runtime::rank_id self);

class machine {
 public:
  /// Of the table above, but for those with numbers, and what comes before these.
  static constexpr std::array named{"gpu", "peer_access", "nvlink", "ipc", "nccl", "ucx"};
  static constexpr std::array<std::string_view, 4> numbered{"sm_", "cuda_", "nccl_", "memory_"};
  /// Whether it is one with a number: `sm_90`, but not `nccl_ours`, which may be a config's own name.
  static bool is_numbered(std::string_view name);
  /// Whether a config may require it; an error has the names that come near it.
  static runtime::result<> is_capability(std::string_view name);
  /// All of them, in words, with examples of those with numbers.
  static std::string what_there_is();
  static machine without_gpu();
  /// `nccl`: what the job was given of it; null: nothing.
  static machine with_gpu(const transports::cuda_driver& gpu, int device,
                          const transports::nccl_library* nccl = nullptr);
  void mask(const std::vector<masked_capability>& masks, runtime::rank_id self);
  /// An error says why not.
  runtime::result<> has(std::string_view capability) const;
  /// The same of a config's own name, which is no version, even if it reads like one.
  runtime::result<> lets_run(std::string_view config) const;

 private:
  void lacks(std::string_view capability, std::string why) { lacking_.emplace_back(capability, std::move(why)); }
  std::vector<std::string> masked_;
  std::vector<std::pair<std::string, std::string>> lacking_;  // with the reasons
  struct version {
    std::string_view prefix;  // of the names that ask for it
    std::int64_t has;
    std::string who;
  };
  std::vector<version> versions_;
};

}  // namespace parley::ops
