#pragma once
/// Errors as values. A fault of a peer, a wire or a deadline is a `result` that carries an `error`; API misuse and set-up
/// faults throw a `failure`, which carries the same `error`.
///
///     result<int> answer = parse(text);
///     if (!answer) return answer.reason();         // pass it on as a value ...
///     use(answer.value());                         // ... or let it throw `failure` when there is none
///
/// Its text begins with what it is about, and the same is there as facts, so that a program need not read the text:
///
///     error late(errc::timeout, {.op = "acts 0->1", .rank = 1, .invocation = 12, .peer = 0}, "rank 0 is late");
///     late.what();              // `timeout: acts 0->1, invocation 12, on rank 1: rank 0 is late`
///     late.about().peer;        // 0
///
/// An error without a text of its own costs no allocation.
#include <parley/identifiers.hpp>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace parley::runtime {

/// What went wrong; docs/protocol.md, Faults, says who is told which.
enum class errc : std::uint8_t {
  none,
  pending,               ///< not an error: the operation goes on
  timeout,               ///< the deadline passed first
  cancelled,             ///< its scope was cancelled
  closed,                ///< the actor, mailbox or executor has ended, or an op, as a call of it has failed
  full,                  ///< a bounded queue has no room
  peer_failed,           ///< the other rank died or cannot be reached
  peer_restarted,        ///< the other rank came back as a new process: what was under way with the old one is over
  fenced,                ///< the others hold this rank dead: it was stopped for too long and came back
  send_failed,           ///< the sender could not send this invocation and said so (poison)
  buffer_too_small,      ///< the message is larger than the receive buffer; nothing was written
  config_failed,         ///< an implementation failed inside a real invocation
  config_mismatch,       ///< the stamped config is not one that this rank can run
  declaration_mismatch,  ///< two ranks declared one op differently
  role_conflict,         ///< two senders, two leaders, or none
  no_common_config,      ///< no config that was given has both halves
  protocol_version,      ///< the other side speaks another version
  malformed,             ///< bytes or text that cannot be what they should be
  unauthenticated,       ///< a wrong key or tag
  bad_argument,          ///< API misuse
  unavailable,           ///< something that is needed is missing on this machine
  io,                    ///< the operating system refused
  device_failed,         ///< a GPU or its driver refused or failed
  invariant_broken,      ///< a fault of parley itself: something that always holds did not
  exception,             ///< user code threw something else than a `failure`
};

/// The error that a number stands for which came from elsewhere; `otherwise` where it stands for none.
constexpr errc errc_of(std::uint64_t code, errc otherwise) noexcept {
  const bool is_error =
      code > static_cast<std::uint64_t>(errc::pending) && code <= static_cast<std::uint64_t>(errc::exception);
  return is_error ? static_cast<errc>(code) : otherwise;
}

/// `timeout`, `peer_failed`, ...: the name that texts, files and JSON use.
std::string_view name(errc code) noexcept;

/// The rank that an error began with, and what became of it, in words behind its name: ` is gone: …`, ` ended with …`. Ranks that ended
/// because of it pass it on, so that whoever ends because of one of them still names it.
struct root_cause {
  rank_id rank = 0;
  std::string what;

  friend bool operator==(const root_cause&, const root_cause&) = default;
};

/// What a call waited for when it ended.
enum class awaited : std::uint8_t {
  none,         ///< nothing, or it is not known what
  message,      ///< a receive: a message of its tag
  payload,      ///< a receive whose message has begun: the rest of it
  receive,      ///< a send: a receive that takes its payload
  room,         ///< a send: receives for what was sent before
  declaration,  ///< a send: the peer's declaration of the op
  kernels,      ///< a send: kernels of this rank that write its payload
  members,      ///< a call of several ranks: those that are late
  rehearsals,   ///< a call without headers: the rehearsals that all members make before it
  schedule,     ///< a call without headers: the leader's schedule
  config,       ///< its own config to end
};

/// `message`, `room`, ...: the name that texts use.
std::string_view name(awaited what) noexcept;

/// What an error is about. A fact that is not known, or that the error does not have, is not there.
struct error_facts {
  std::string op{};                           ///< the op's title, such as `acts 0->1`
  std::optional<rank_id> rank{};              ///< that met the error
  std::string role{};                         ///< of that rank in the op
  std::optional<std::uint64_t> invocation{};  ///< of the op
  /// Whether that invocation had begun; if not, it is the number that the call would have got.
  bool begun = true;
  std::optional<rank_id> peer{};               ///< the rank that the call waited for, or that failed it
  std::optional<std::uint32_t> tag{};          ///< of the call's messages
  awaited unmet = awaited::none;               ///< what the call waited for
  std::string config{};                        ///< the id of the config that the call ran, or that was refused
  std::optional<std::uint64_t> done_bytes{};   ///< so many were sent or received
  std::optional<std::uint64_t> whole_bytes{};  ///< of the message, or of the peer's call
  std::optional<std::uint64_t> own_bytes{};    ///< of this rank's call: of its buffer, or of what it calls with

  friend bool operator==(const error_facts&, const error_facts&) = default;
};

/// `acts 0->1, invocation 12, on rank 1 (receiver)`: how a text begins. An invocation that had not begun is not in it.
std::string words_of(const error_facts& about);

class error {
 public:
  error(errc code) noexcept : code_(code) {}  // NOLINT(google-explicit-constructor): `return errc::timeout;` reads well
  error(errc code, std::string text) : error(code, std::move(text), nullptr) {}
  /// `began_with` as the error has it that this one is made of.
  error(errc code, std::string text, const root_cause* began_with)
      : code_(code), said_(std::make_shared<const sentence>(error_facts(), std::move(text), began_with)) {}
  /// The text is made of the facts and of `what` happened, what was expected and what to do.
  error(errc code, const error_facts& about, std::string_view what, const root_cause* began_with = nullptr)
      : code_(code),
        said_(std::make_shared<const sentence>(about, words_of(about).append(": ").append(what), began_with)) {}
  /// An error that another rank has put into words, or that goes on: `text` is the whole.
  static error in_words(errc code, error_facts about, std::string text, const root_cause* began_with = nullptr) {
    error made(code);
    made.said_ = std::make_shared<const sentence>(std::move(about), std::move(text), began_with);
    return made;
  }

  errc code() const noexcept { return code_; }
  /// The whole sentence: the code's name, then who, where and what to do.
  std::string what() const;
  /// The same without the code's name; empty when there is no more to say.
  std::string text() const { return said_ ? said_->text : std::string(); }
  /// Where it follows from the end of a rank: which one. Null where it began here.
  const root_cause* began_with() const noexcept { return said_ ? said_->began_with.get() : nullptr; }
  /// What it is about, as facts.
  const error_facts& about() const noexcept;

 private:
  struct sentence {
    sentence(error_facts facts, std::string words, const root_cause* cause)
        : about(std::move(facts)), text(std::move(words)),
          began_with(cause == nullptr ? nullptr : std::make_unique<const root_cause>(*cause)) {}
    error_facts about;
    std::string text;
    std::unique_ptr<const root_cause> began_with;
  };
  errc code_;
  std::shared_ptr<const sentence> said_;
};

/// The exception that carries an `error`.
class failure : public std::exception {
 public:
  explicit failure(error e) : error_(std::move(e)), what_(error_.what()) {}
  const char* what() const noexcept override { return what_.c_str(); }
  const error& reason() const noexcept { return error_; }
  errc code() const noexcept { return error_.code(); }

 private:
  error error_;
  std::string what_;
};

[[noreturn]] void raise(error e);
/// What an exception says, as a value.
error describe(const std::exception_ptr& thrown);

/// Either a value or an error.
template <class T = void>
class [[nodiscard]] result {
 public:
  result(T value) : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  result(error e) : state_(std::in_place_index<1>, std::move(e)) {}      // NOLINT(google-explicit-constructor)
  result(errc code) : state_(std::in_place_index<1>, error(code)) {}     // NOLINT(google-explicit-constructor)

  explicit operator bool() const noexcept { return state_.index() == 0; }
  T& value() & {
    if (!*this) raise(reason());
    return *std::get_if<0>(&state_);
  }
  T&& value() && {
    if (!*this) raise(reason());
    return std::move(*std::get_if<0>(&state_));
  }
  const T& value() const& {
    if (!*this) raise(reason());
    return *std::get_if<0>(&state_);
  }
  T& operator*() & noexcept { return *std::get_if<0>(&state_); }
  const T& operator*() const& noexcept { return *std::get_if<0>(&state_); }
  T&& operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
  T* operator->() noexcept { return std::get_if<0>(&state_); }
  const T* operator->() const noexcept { return std::get_if<0>(&state_); }
  const error& reason() const noexcept { return *std::get_if<1>(&state_); }
  errc code() const noexcept { return *this ? errc::none : reason().code(); }

 private:
  std::variant<T, error> state_;
};

template <>
class [[nodiscard]] result<void> {
 public:
  result() noexcept = default;
  result(error e) : error_(std::move(e)) {}                                                      // NOLINT
  result(errc code) : error_(code == errc::none ? std::nullopt : std::optional<error>(code)) {}  // NOLINT

  explicit operator bool() const noexcept { return !error_; }
  void value() const {
    if (error_) raise(*error_);
  }
  const error& reason() const noexcept { return *error_; }
  errc code() const noexcept { return error_ ? error_->code() : errc::none; }

 private:
  std::optional<error> error_;
};

}  // namespace parley::runtime
