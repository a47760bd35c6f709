#include <parley/cli/payload/payload_engine.hpp>

#include <parley/cli/payload/cuda.hpp>
#include <parley/cli/payload/payload.hpp>
#include <parley/compute.hpp>

namespace parley::cli {

using runtime::task;

task<std::uint64_t> host_engine::run(payload_step step, std::span<std::byte> payload) {
  auto work = [step, payload] {
    if (step.makes) make_payload(step.number, payload);
    if (step.factor != 1) multiply(payload, step.factor);
    return step.hashes ? digest_of(payload) : 0;
  };
  const runtime::time_ns modelled_ns = takes_ ? takes_(step, payload.size()) : 0;
  const std::uint64_t digest = co_await runtime::compute(work, modelled_ns);
  co_return digest;
}

cuda_engine::cuda_engine(transports::cuda_copies& copies, transports::cuda_space& memory)
    : copies_(copies), space_(memory), stream_(copies.driver().make_stream(copies.device())) {}
cuda_engine::~cuda_engine() { copies_.driver().destroy(stream_); }

task<> cuda_engine::bring_to_host(std::span<std::byte> payload) {
  if (on_host_.bytes().size() < payload.size())
    on_host_ = transports::cuda_memory::pinned(copies_.driver(), payload.size());
  co_await space_.copy(on_host_.bytes().first(payload.size()), payload);
}

task<std::uint64_t> cuda_engine::run(payload_step step, std::span<std::byte> payload) {
  if (step.makes) must_launch(launch_make_payload(step.number, payload, copies_.device(), stream_));
  if (step.factor != 1) must_launch(launch_multiply(payload, step.factor, copies_.device(), stream_));
  if (copies_.after(payload, stream_) != runtime::errc::none)
    runtime::raise({runtime::errc::device_failed, copies_.driver().fault()});
  if (!step.hashes) co_return 0;
  co_await bring_to_host(payload);
  const std::span<const std::byte> here = on_host_.bytes().first(payload.size());
  auto hash = [here] { return digest_of(here); };
  const std::uint64_t digest = co_await runtime::compute(hash);
  co_return digest;
}

}  // namespace parley::cli
