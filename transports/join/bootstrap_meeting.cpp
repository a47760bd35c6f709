#include <parley/transports/join/bootstrap_meeting.hpp>

#include <parley/transports/join/rendezvous_wire.hpp>

#include <string>
#include <utility>

namespace parley::transports {

using runtime::errc;
using runtime::rank_id;

namespace {

constexpr std::uint64_t greeting = 0x31736279656c7261ULL;  // "arleybs1"

[[noreturn]] void refuse(const bootstrap& through, errc code, const std::string& what) {
  runtime::raise({code, "rank " + std::to_string(through.rank) + " of " + std::to_string(through.world_size) +
                            " cannot join through the program's all_gather: " + what});
}

}  // namespace

bootstrap_meeting::bootstrap_meeting(bootstrap through) : through_(std::move(through)) {
  if (!through_.all_gather)
    refuse(through_, errc::bad_argument, "there is none; set job_options::bootstrap's function");
  if (through_.world_size == 0 || through_.world_size > max_world_size || through_.rank >= through_.world_size)
    refuse(through_, errc::bad_argument,
           "ranks count from 0 to the world's size - 1, at most " + std::to_string(max_world_size) + " ranks");

  std::array<std::byte, 32> random{};
  wire::randomise(random);
  const auto host = host_identity();
  const auto all = exchange(wire::writer()
                                .number(greeting)
                                .number(wire::protocol_version)
                                .number(through_.rank)
                                .number(through_.world_size)
                                .number(host)
                                .raw(random)
                                .take());
  wire::writer everything;
  everything.text("parley bootstrap");
  for (rank_id rank = 0; rank < through_.world_size; ++rank) {
    const std::string whose = "the entry of rank " + std::to_string(rank);
    wire::scanner in(all[rank]);
    if (in.number<std::uint64_t>() != greeting)
      refuse(through_, errc::bad_argument,
             whose + " is not from a rank of parley; the function must return each rank's bytes unchanged");
    const auto version = in.number<decltype(wire::protocol_version)>();
    if (version != wire::protocol_version)
      refuse(through_, errc::protocol_version,
             whose + " speaks version " + std::to_string(version) + " and this one " +
                 std::to_string(wire::protocol_version) + "; use one build of parley");
    const auto its_rank = in.number<rank_id>();
    const auto its_world = in.number<rank_id>();
    const auto its_host = in.number<std::uint64_t>();
    if (in.raw(random.size()).empty() || !in.complete() || its_rank != rank || its_world != through_.world_size)
      refuse(through_, errc::bad_argument,
             whose + " comes from rank " + std::to_string(its_rank) + " of " + std::to_string(its_world) +
                 "; the function must return the bytes of the ranks of one world, in the order of ranks");
    one_host_ = one_host_ && its_host == host;
    everything.raw(all[rank]);
  }
  secret_ = wire::sha256(everything.take());
  job_ = wire::scanner(wire::sha256(secret_)).number<std::uint64_t>();
}

std::vector<bootstrap::bytes> bootstrap_meeting::exchange(std::span<const std::byte> mine) const {
  auto all = through_.all_gather(mine);
  if (all.size() != through_.world_size)
    refuse(through_, errc::bad_argument,
           "it returned " + std::to_string(all.size()) + " entries; it must return one per rank");
  return all;
}

joined bootstrap_meeting::join(member me) {
  me.rank = through_.rank;
  if (me.incarnation == 0) me.incarnation = fresh_incarnation();
  const auto all = exchange(wire::encode_member(me));
  joined everybody;
  for (rank_id rank = 0; rank < through_.world_size; ++rank) {
    wire::scanner in(all[rank]);
    auto entry = wire::decode_member(in);
    if (!entry || !in.complete() || entry->rank != rank)
      refuse(through_, errc::bad_argument,
             "the second entry of rank " + std::to_string(rank) +
                 " is not its own; the function must return each rank's bytes unchanged");
    everybody.members.push_back(std::move(*entry));
  }
  everybody.roster_digest = wire::sha256(wire::encode_roster(job_, everybody.members));
  everybody.session_key = wire::session_key(secret_, job_, everybody.roster_digest);
  everybody.authenticated = true;
  return everybody;
}

}  // namespace parley::transports
