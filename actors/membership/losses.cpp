#include <parley/actors/membership/losses.hpp>

#include <algorithm>
#include <utility>

namespace parley::actors {
namespace {

constexpr runtime::time_ns longest_chain_ns = 1'000'000'000;  // from the first failure until the last rank knows of it

}  // namespace

const loss* losses::add(rank_id lost, std::string_view why, departure how, time_ns now_ns) {
  return add(in_words(lost, why, how), now_ns);
}

const loss* losses::add_ended(rank_id ended, const runtime::root_cause& began_with, time_ns now_ns) {
  const std::string by_another = " ended because rank " + std::to_string(began_with.rank) + began_with.what;
  return add({ended, began_with.rank == ended ? began_with.what : by_another, departure::failed, began_with}, now_ns);
}

const loss* losses::add(loss l, time_ns now_ns) {
  const auto is_it = [&](const loss& other) { return other.who == l.who; };
  if (std::any_of(all_.begin(), all_.end(), is_it)) return nullptr;
  l.noted_ns = now_ns;
  return &all_.emplace_back(std::move(l));
}

loss losses::in_words(rank_id lost, std::string_view why, departure how) const {
  const std::string reason(why);
  if (how == departure::failed) return {lost, " ended with " + reason, how, {lost, " ended with " + reason}};
  if (how == departure::returned) {
    const std::string what = " has returned from rank_main";
    return {lost, what, how, {lost, what}};
  }
  if (how == departure::cut_off)
    return {lost,
            " can no longer be reached: " + reason +
                "; to keep the connection, cancel a call and await it before you destroy it",
            how,
            {self_, " has torn down a call whose message was in flight"}};
  const auto is_cause = [&](const loss& l) { return l.how != departure::returned && l.who != lost; };
  const auto before = std::find_if(all_.rbegin(), all_.rend(), is_cause);
  if (how == departure::vanished && before != all_.rend()) {
    const runtime::root_cause& first = before->began_with;
    return {lost, " is gone: " + reason + " after rank " + std::to_string(first.rank) + first.what, how, first};
  }
  // Rank 0 is never restarted, because it hosts the rendezvous.
  const char* const remedy = ranks_come_back_ && lost != 0 ? "wait for its restart, or restart the job to continue"
                                                           : "restart the job to continue";
  const std::string what = " is gone: " + reason + "; " + remedy;
  return {lost, what, how, {lost, what}};
}

void losses::forget(rank_id back) {
  std::erase_if(all_, [back](const loss& l) { return l.who == back; });
}

bool losses::has_failed(rank_id r) const noexcept {
  return std::any_of(all_.begin(), all_.end(),
                     [r](const loss& l) { return l.who == r && l.how != departure::returned; });
}

runtime::error losses::traced(const runtime::error& why, time_ns now_ns) const {
  if (why.code() != runtime::errc::send_failed || why.began_with() != nullptr) return why;
  const auto explains = [&](const loss& l) {
    return l.how != departure::returned && l.how != departure::cut_off && l.noted_ns >= now_ns - longest_chain_ns;
  };
  const auto first = std::find_if(all_.begin(), all_.end(), explains);
  if (first == all_.end()) return why;
  return runtime::error::in_words(
      why.code(), why.about(), why.text() + "; rank " + std::to_string(first->who) + first->what, &first->began_with);
}

// By now this rank may know why `cause.rank` ended.
runtime::root_cause losses::cause_of(const runtime::error& why) const {
  runtime::root_cause cause{self_, " ended with " + why.what()};
  if (const runtime::root_cause* const first = why.began_with()) cause = *first;
  const auto known = std::find_if(all_.begin(), all_.end(), [&](const loss& l) { return l.who == cause.rank; });
  return known == all_.end() ? cause : known->began_with;
}

}  // namespace parley::actors
