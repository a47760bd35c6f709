#include <parley/ops/job/death_notices.hpp>

#include <utility>

namespace parley::ops {

using runtime::errc;

namespace {

constexpr std::uint64_t every_rank = 0x6465617468;  // the actor's number; it belongs to no op
constexpr runtime::time_ns again_after_ns = 20'000'000;
constexpr std::size_t most_words = 500;  // bytes

}  // namespace

death_notices::death_notices(runtime::executor& ex, runtime::router& mail,
                             const std::vector<transports::member>& members, rank_id self, newest_function newest,
                             heard_function heard)
    : executor_(ex), mail_(mail), members_(members), self_(self), newest_(std::move(newest)), heard_(std::move(heard)) {
  mail_.bind<death_notice>(every_rank, [this](runtime::envelope from, death_notice&& m) {
    hear(from.source, m);
    return errc::none;
  });
}

death_notices::~death_notices() { mail_.unbind(every_rank); }

void death_notices::tell(rank_id dead, const std::string& why) {
  if (!told_.insert(members_[dead].incarnation).second) return;
  death_notice says;
  says.rank = dead;
  says.incarnation = members_[dead].incarnation;
  says.why = why.substr(0, most_words);
  for (const transports::member& m : members_) {
    if (m.host != members_[self_].host) unsent_.push_back({m.rank, says});
  }
  send_rest();
}

// A notice is dropped if its receiver is gone or never had an address.
void death_notices::send_rest() noexcept {
  std::erase_if(unsent_, [this](const letter& l) { return mail_.send(l.to, every_rank, 0, l.says) != errc::full; });
  if (!unsent_.empty() && !timer_.linked()) executor_.arm_in(timer_, again_after_ns);
}

// Ignores notices about this rank's own host, because the rank itself knows more about that host.
void death_notices::hear(rank_id from, const death_notice& m) const {
  if (m.rank >= members_.size() || m.rank == from || newest_(m.rank) != m.incarnation) return;
  const std::uint64_t host = members_[m.rank].host;
  if (host == members_[from].host && host != members_[self_].host) heard_(m.rank, m.why);
}

}  // namespace parley::ops
