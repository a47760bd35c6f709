#pragma once
/// A fake NCCL for tests, over `fake_cuda`. Communicators connect once all members are there. A call stays pending for a while before it is
/// in its stream. The n-th send of a communicator meets its n-th receive on the device, when both have their turn. A kernel whose other
/// half never arrives runs until it is aborted.
#include <parley/tests/support/devices/fake_cuda.hpp>

#include <parley/config.hpp>
#include <parley/transports/nccl/nccl_library.hpp>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace parley::tests {

using transports::nccl_communicator;
using transports::nccl_id;

class fake_nccl final : public transports::nccl_library {
 public:
  explicit fake_nccl(fake_cuda& gpu) : gpu_(gpu) {}
  ~fake_nccl() override;  // in a source of its own, so that only that one has all functions of this class

  enum class connecting_state { works, refused, fails } connecting = connecting_state::works;
  std::optional<int> refuses_place{};  ///< the member that cannot connect
  int asked_per_call = 3;              ///< how often `state` returns pending after each call
  int mismatches = 0;                  ///< sends that met a receive of another size
  int aborts = 0;
  bool aborts_are_late =
      false;  ///< an abort of a pending call ends only with `come_late`, which puts the call into its stream
  std::size_t communicators() const { return all_.size(); }

  int version() const noexcept override { return 22809; }
  void prepare(int device) noexcept override { prepared_.insert(device); }
  runtime::result<nccl_id> make_id() override {
    nccl_id made;
    ++last_id_;
    std::memcpy(made.bytes.data(), &last_id_, sizeof last_id_);
    return made;
  }
  runtime::result<nccl_communicator> connect(const nccl_id& id, int members, int place, int device) override {
    if (!prepared_.contains(device))
      return runtime::error{errc::unavailable, "its kernels would be loaded while streams wait"};
    if (connecting == connecting_state::refused || refuses_place == place)
      return runtime::error{errc::unavailable, "NCCL: duplicate GPU detected, planted"};
    std::uint64_t number = 0;
    std::memcpy(&number, id.bytes.data(), sizeof number);
    auto& met = met_[number];
    if (met == nullptr) met = std::make_shared<meeting>();
    ++met->joined;
    all_.push_back(std::make_unique<member>());
    member& made = *all_.back();
    made.of = met;
    made.members = members;
    made.place = place;
    made.asked = asked_per_call;
    return reinterpret_cast<nccl_communicator>(&made);
  }
  errc state(nccl_communicator c) noexcept override {
    member& m = of(c);
    if (connecting == connecting_state::fails) return errc::device_failed;
    if (m.of->joined < m.members) return errc::pending;
    if (m.asked > 0) --m.asked;
    if (m.asked > 0) return errc::pending;
    if (m.behind_the_scenes) std::exchange(m.behind_the_scenes, {})();
    return errc::none;
  }
  errc send(std::span<const std::byte> from, int to, nccl_communicator c, CUstream_st* stream) noexcept override {
    return enqueue(of(c), {const_cast<std::byte*>(from.data()), from.size()}, &meeting::sends, to, stream);
  }
  errc receive(std::span<std::byte> into, int from, nccl_communicator c, CUstream_st* stream) noexcept override {
    return enqueue(of(c), into, &meeting::receives, from, stream);
  }
  errc sum_floats(std::span<std::byte> data, nccl_communicator c, CUstream_st* stream) noexcept override {
    return enqueue(of(c), data, &meeting::sums, of(c).place, stream);
  }
  nothing_more abort(nccl_communicator c) noexcept override {
    ++aborts;
    const auto over = std::make_shared<std::atomic<bool>>(true);
    *of(c).aborted = true;
    if (aborts_are_late && (of(c).behind_the_scenes || of(c).asked > 0)) {
      over->store(false);
      late_.emplace_back([over, call = std::move(of(c).behind_the_scenes)] {
        if (call) call();
        over->store(true);
      });
    }
    std::erase_if(all_, [&](const auto& m) { return m.get() == &of(c); });
    return over;
  }
  /// Calls that were pending when their communicator was aborted enter their streams now.
  void come_late() {
    for (const auto& each : std::exchange(late_, {})) each();
  }
  std::size_t late() const { return late_.size(); }
  std::string fault() const override { return "NCCL: planted"; }

 private:
  struct call {
    std::span<std::byte> memory;
    int members = 0;
    bool met = false;
  };
  struct meeting {
    int joined = 0;
    std::deque<std::shared_ptr<call>> sends;
    std::deque<std::shared_ptr<call>> receives;
    std::deque<std::shared_ptr<call>> sums;
  };
  struct member {
    std::shared_ptr<meeting> of;
    int members = 0;
    int place = 0;
    int asked = 0;
    std::function<void()> behind_the_scenes;
    std::shared_ptr<bool> aborted = std::make_shared<bool>(false);
  };
  static member& of(nccl_communicator c) { return *reinterpret_cast<member*>(c); }

  errc enqueue(member& m, std::span<std::byte> memory, std::deque<std::shared_ptr<call>> meeting::* where, int with,
               CUstream_st* stream) {
    if (m.asked > 0 || m.behind_the_scenes || with < 0 || with >= m.members) return errc::device_failed;
    m.asked = asked_per_call;
    m.behind_the_scenes = [this, met = m.of, gone = m.aborted, memory, where, members = m.members, stream] {
      // Each replay is a call of its own.
      gpu_.launch_until(stream, [this, met, gone, memory, members, where, mine = std::shared_ptr<call>()]() mutable {
        if (mine == nullptr) {
          mine = std::make_shared<call>(call{memory, members});
          ((*met).*where).push_back(mine);
        }
        bring_together(*met);
        return mine->met || *gone;
      });
    };
    return errc::pending;
  }
  void bring_together(meeting& m) {
    while (!m.sends.empty() && !m.receives.empty()) {
      call& from = *m.sends.front();
      call& to = *m.receives.front();
      if (from.memory.size() != to.memory.size()) ++mismatches;
      std::memmove(gpu_.shadow(to.memory.data()), gpu_.shadow(from.memory.data()),
                   std::min(from.memory.size(), to.memory.size()));
      from.met = to.met = true;
      m.sends.pop_front();
      m.receives.pop_front();
    }
    if (!m.sums.empty() && static_cast<int>(m.sums.size()) == m.sums.front()->members) {
      std::vector<float> sum(m.sums.front()->memory.size() / sizeof(float));
      for (const auto& each : m.sums) {
        std::vector<float> theirs(sum.size());
        std::memcpy(theirs.data(), gpu_.shadow(each->memory.data()), each->memory.size());
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += theirs[i];
      }
      for (const auto& each : m.sums) {
        std::memcpy(gpu_.shadow(each->memory.data()), sum.data(), each->memory.size());
        each->met = true;
      }
      m.sums.clear();
    }
  }

  fake_cuda& gpu_;
  std::uint64_t last_id_ = 0;
  std::set<int> prepared_;
  std::map<std::uint64_t, std::shared_ptr<meeting>> met_;
  std::vector<std::unique_ptr<member>> all_;
  std::vector<std::function<void()>> late_;
};

}  // namespace parley::tests
