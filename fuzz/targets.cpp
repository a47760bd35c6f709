#include "fuzz.hpp"

#include <array>

namespace parley::fuzz {

std::span<const target> targets() {
  static constexpr std::array all{
      target{"control_frame", control_frame},
      target{"message", message},
      target{"router_frames", router_frames},
      target{"stamp", stamp},
      target{"pieces", pieces},
      target{"credits", credits},
      target{"lent_payloads", lent_payloads},
      target{"carried_memory", carried_memory},
      target{"nccl_requests", nccl_requests},
      target{"cuda_keys", cuda_keys},
      target{"rendezvous_frames", rendezvous_frames},
      target{"rendezvous_host", rendezvous_host},
      target{"rendezvous_guest", rendezvous_guest},
      target{"rendezvous_restart", rendezvous_restart},
      target{"environment", environment},
      target{"meeting_file", meeting_file},
      target{"pmi", pmi},
      target{"results_file", results_file},
      target{"spec", spec},
      target{"expression", expression},
      target{"rank_report", rank_report},
      target{"scenario", scenario},
  };
  return all;
}

}  // namespace parley::fuzz
