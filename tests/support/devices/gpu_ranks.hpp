#pragma once
/// Two or more ranks in one process, which stand for processes with a GPU each: device buffers over a link that moves only host memory.
#include <parley/tests/support/devices/fake_cuda.hpp>
#include <parley/tests/support/devices/fake_nccl.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/config.hpp>
#include <parley/cuda_link.hpp>
#include <parley/cuda_space.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/rank.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/runtime/time/reactor.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>
#include <parley/transports/in_process/process_world.hpp>

#include <memory>
#include <span>
#include <vector>

namespace parley::tests {

runtime::task<> reaches(transports::cuda_copies& copies, transports::cuda_stream stream);

struct two_ranks {
  two_ranks(fake_cuda& gpu, const std::vector<ops::config_ptr>& configs, fake_nccl* nccl = nullptr,
            runtime::rank_id world = 2);
  ~two_ranks();
  void move(std::span<std::byte> from, std::span<std::byte> to, int times);
  static runtime::task<> sends(ops::transfer t, std::span<std::byte> from, int times);
  static runtime::task<> receives(ops::transfer t, std::span<std::byte> to, int times);
  static runtime::task<> takes(ops::transfer t, std::span<std::byte> into, ops::receive_options o);
  static runtime::task<> both(two_ranks& w, std::span<std::byte> from, std::span<std::byte> to, int times);
  const actors::search* search(std::uint64_t bytes) const;
  bool decided(std::uint64_t bytes) const;

  runtime::reactor loop;
  transports::process_world below;
  std::vector<std::unique_ptr<transports::cuda_copies>> copies;
  std::vector<std::unique_ptr<transports::cuda_link>> wires;
  std::vector<std::unique_ptr<transports::cuda_space>> spaces;
  std::vector<std::unique_ptr<ops::rank>> ranks;
  std::vector<ops::transfer> ends;
};

}  // namespace parley::tests
