// The texts of the errors that an edge's calls throw.
#include <parley/ops/core/call_error.hpp>
#include <parley/ops/core/call_type.hpp>
#include <parley/ops/edges/edge_in.hpp>
#include <parley/ops/edges/edge_out.hpp>

#include <string>
#include <utility>

namespace parley::ops {

using actors::stamp_flags;
using runtime::errc;
using runtime::error;
using runtime::failure;
using runtime::task;

failure edge_end::explained(errc code, const runtime::error_facts& about, const std::string& what) const {
  services_.about_to_fail(code);
  failure why = in_words(code, about, what);
  services_.call_failed(why.reason());
  return why;
}

failure edge_end::in_words(errc code, const runtime::error_facts& about, const std::string& what) const {
  const bool begun = about.invocation && about.begun;
  // If this rank's own device failed the call, that is the cause, and the peer has ended the op because of it.
  const bool by_itself = begun && !said_by(options_.memory, code, {}).empty();
  if (failed_ && !begun)
    return failure(error::in_words(failed_->code(), about_call(failed_->about(), about), failed_->text() + "; " + what,
                                   failed_->began_with()));
  if (failed_ && !by_itself) return failure(while_in_flight(*failed_, about));
  std::string text = what + said_by(options_.memory, code, what);
  if (code != errc::peer_failed) return failure({code, about, text});
  // The transport may know of a death before this end does.
  text += "; rank " + std::to_string(options_.peer) + " is gone; restart the job to continue";
  const runtime::root_cause cause{options_.peer, " is gone; restart the job to continue"};
  return failure({code, about, text, &cause});
}

// ---- at the sender ------------------------------------------------------------------------------------------------------

runtime::awaited edge_out::why_not_admitted(std::uint32_t tag, std::uint64_t bytes, bool is_still_written) {
  using runtime::awaited;
  if (is_still_written) return awaited::kernels;
  return sender_.awaits_answer(tag, bytes) ? awaited::declaration : awaited::room;
}

std::string edge_out::words_of(runtime::awaited unmet) const {
  if (unmet == runtime::awaited::kernels) return "kernels of this rank had not finished writing the buffer";
  const std::string peer = "rank " + std::to_string(options_.peer);
  if (unmet == runtime::awaited::room)
    return peer + " has no room, because it has not posted receives for the earlier messages";
  return peer + " has not answered for this op and may not have declared it yet, and " +
         std::to_string(sender_.allowance().taken_bytes()) + " of the " +
         std::to_string(sender_.allowance().most_bytes()) +
         " bytes that this rank may send to it for undeclared ops are in use; declare the op earlier on " + peer +
         ", or send less before that rank declares it";
}

void edge_out::end_failed(const actors::outgoing& inv, part_sender& out, std::size_t bytes, std::string_view why) {
  out.fail(errc::config_failed);  // unless it has failed with another reason already
  sender_.end(inv, out);
  if (const auto refused = refused_.take(inv.mark.tag, inv.invocation))
    throw explained(refused->code, about_refused(*refused), words_of(*refused));
  runtime::error_facts facts = about(inv.invocation, inv.mark.tag);
  if (out.failed() == errc::timeout) facts.unmet = runtime::awaited::receive;
  facts.config = find(inv.mark.digest)->id();
  facts.done_bytes = out.sent_bytes();
  facts.whole_bytes = bytes;
  throw explained(
      out.failed(), facts,
      "config " + facts.config + " to rank " + std::to_string(options_.peer) + " sent " +
          std::to_string(out.sent_bytes()) + " of " + std::to_string(bytes) + " bytes" +
          (out.failed() == errc::timeout ? "; that rank has posted no receive, or reads too slowly for this deadline"
                                         : "") +
          (why.empty() ? "" : "; " + std::string(why)) + (out.failed() == errc::timeout ? words_of_peer() : ""));
}

runtime::error_facts edge_out::about_refused(const refusal& r) const {
  runtime::error_facts facts = about(r.invocation, r.tag);
  facts.whole_bytes = r.bytes;
  return facts;
}

std::string edge_out::words_of(const refusal& r) const {
  return "rank " + std::to_string(options_.peer) + " did not take this message of tag " + std::to_string(r.tag) + ": " +
         r.why;
}

void edge_out::list_undelivered(std::vector<std::pair<rank_id, std::string>>& all) {
  if (delivered()) return;
  const auto [sent, unmatched] = sender_.delivery();
  const std::string receiver = "rank " + std::to_string(peer());
  all.emplace_back(peer(), declaration().title() + ", on rank " + std::to_string(services_.net.rank()) + ": " +
                               receiver + " has not taken " + std::to_string(unmatched) + " of the " +
                               std::to_string(sent) +
                               " messages that were sent to it; let it receive each message before it returns");
}

void edge_out::list_left_over(std::vector<std::string>& lines) {
  for (const refusal& r : refused_.untold()) lines.emplace_back(in_words(r.code, about_refused(r), words_of(r)).what());
  if (refused_.forgotten() != 0)
    lines.push_back(declaration().title() + ": rank " + std::to_string(options_.peer) + " has refused " +
                    std::to_string(refused_.forgotten()) + " more messages like that");
}

// ---- at the receiver ----------------------------------------------------------------------------------------------------

void edge_in::throw_failed(const part_receiver& in, std::uint64_t ran, std::string_view why) {
  if (why.empty() && in.failed() == errc::timeout) why = in.mismatch();  // parts that do not fit may be the cause
  const paired_config* config = find(ran);
  const bool other_bytes = has(in.mark()->flags, stamp_flags::checked) && in.received_bytes() == in.total_bytes() &&
                           in.failed() == errc::config_failed && in.sender_failure() == errc::none && why.empty();
  const std::string what =
      (config == nullptr ? "an unknown config" : "config " + config->id()) + " received " +
      std::to_string(in.received_bytes()) + " of " + std::to_string(in.total_bytes()) + " bytes from rank " +
      std::to_string(options_.peer) +
      (in.sender_failure() == errc::none
           ? ""
           : ", and the send ended there with " + std::string(runtime::name(in.sender_failure()))) +
      (other_bytes ? "; the comparison of trials found that the bytes differ from those sent" : "") +
      (why.empty() ? "" : "; " + std::string(why));
  report_failure(in, in.digest(), in.failed(), what);
  runtime::error_facts facts = about(in.invocation(), in.mark()->tag);
  if (in.failed() == errc::timeout) facts.unmet = in.all_here() ? runtime::awaited::config : runtime::awaited::payload;
  if (config != nullptr) facts.config = config->id();
  facts.done_bytes = in.received_bytes();
  facts.whole_bytes = in.total_bytes();
  throw explained(in.failed(), facts, what);
}

namespace {
// The end of a refusal's text, the same on both ranks.
std::string why_refused(const part_receiver& in, errc why) {
  const actors::receive_room& takes = in.takes();
  const actors::stamp& came = in.stamp_of_refused();
  const std::string bytes = std::to_string(came.total_bytes) + " bytes";
  std::string text;
  if (why == errc::declaration_mismatch) {
    text = "which is for " + words_of_elements(takes.type) + ", but the message has " +
           words_of_elements(came.more_type) +
           (is_of_a_run(takes.type) ? "; give all stages the same microbatches"
                                    : "; give both ranks the same type, or send bytes");
  } else if (why == errc::buffer_too_small) {
    text = "which is too small for the message of " + bytes;
  } else {
    text = "which the message must fill, but the message has " + bytes;
  }
  return in.landed() ? text : text + "; nothing was written";
}
}  // namespace

void edge_in::tell_refused(const part_receiver& in, errc why) {
  const actors::stamp& s = in.stamp_of_refused();
  if (failed_ || has(s.flags, stamp_flags::rehearsal)) return;
  actors::nack n;
  n.tag = s.tag;
  n.invocation = in.invocation();
  n.digest = s.digest;
  n.bytes = s.total_bytes;
  n.code = static_cast<std::uint8_t>(why);
  n.refused = true;
  n.text = "its receive has a buffer of " + std::to_string(in.takes().most_bytes) + " bytes, " + why_refused(in, why);
  static_cast<void>(participant_.actor.try_send(std::move(n)));
}

// If the peer has not said what it is doing (perhaps there was no time to ask), names another likely reason.
std::string edge_in::late_because() const {
  const std::string said = words_of_peer();
  return said.empty() ? ", or its messages have another tag" : said;
}

std::string edge_in::words_of_failure_there(errc code, const std::string& config) const {
  if (code == errc::device_failed)
    return "; the device of rank " + std::to_string(options_.peer) + " failed in config " + config;
  return "; config " + config + " failed at the sender";
}

void edge_in::throw_unmatched(const part_receiver& in, std::size_t capacity, std::uint32_t tag) {
  // A poisoned or refused message has a number. The size of a poisoned one is in the sender's record only.
  record_unbegun(runtime::flight_event::receive_failed, tag, in.invocation(),
                 in.refused() ? in.stamp_of_refused().total_bytes : capacity, in.posted_ns());
  if (!in.matched()) {
    runtime::error_facts facts = about_next(in.invocation(), tag, runtime::awaited::message);
    facts.own_bytes = capacity;
    throw explained(in.failed(), facts,
                    "no message matched a receive of up to " + std::to_string(capacity) + " bytes from rank " +
                        std::to_string(options_.peer) + " (tag " + std::to_string(tag) + ", invocation " +
                        std::to_string(in.invocation()) + ")" +
                        (in.failed() == errc::timeout && !failed_ ? "; that rank is late" + late_because() : ""));
  }
  runtime::error_facts facts = about(in.invocation(), tag);
  facts.own_bytes = capacity;
  if (in.refused()) facts.whole_bytes = in.stamp_of_refused().total_bytes;
  const bool of_sender = in.failed() == errc::config_failed || in.failed() == errc::device_failed;
  const paired_config* const failed = of_sender ? find(in.digest()) : nullptr;
  if (failed != nullptr) facts.config = failed->id();
  throw explained(in.failed(), facts,
                  "a receive from rank " + std::to_string(options_.peer) + " into a buffer of " +
                      std::to_string(capacity) + " bytes" +
                      (in.refused() ? ", " + why_refused(in, in.failed()) : ", tag " + std::to_string(tag)) +
                      (failed == nullptr ? "" : words_of_failure_there(in.failed(), failed->id())));
}

}  // namespace parley::ops
