#pragma once
/// Errors as values. If a peer or a wire fails, or a deadline passes, a function returns a `result` that carries an `error`. API misuse and
/// faults of the set-up throw a `failure`, which also carries an `error`.
///
///     result<int> answer = parse(text);
///     if (!answer) return answer.reason();         // pass it on as a value ...
///     use(answer.value());                         // ... or let it throw `failure` when there is none
///
/// The text of an error begins with the op, the invocation and the rank. A program need not parse the text, because these facts are also
/// available as values (error_facts.hpp):
///
///     error late(errc::timeout, {.op = "acts 0->1", .rank = 1, .invocation = 12, .peer = 0}, "rank 0 is late");
///     late.what();              // `timeout: acts 0->1, invocation 12, on rank 1: rank 0 is late`
///     late.about().peer;        // 0
///
/// An error without a text of its own costs no allocation.
#include <parley/error_facts.hpp>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace parley::runtime {

/// The kind of an error. docs/protocol.md, Faults, says which rank gets which error.
enum class errc : std::uint8_t {
  none,
  pending,               ///< not an error: the operation is in progress
  timeout,               ///< the deadline passed before the operation ended
  cancelled,             ///< its scope was cancelled
  closed,                ///< the actor, mailbox, executor or op has ended; an op may end after a failed call
  full,                  ///< a bounded queue has no room
  peer_failed,           ///< the other rank died or cannot be reached
  peer_restarted,        ///< the other rank came back as a new process; operations in flight with the old one end
  fenced,                ///< the other ranks declared this rank dead: it was stopped for too long and came back
  send_failed,           ///< the sender could not send this invocation, and has told the receiver (poison)
  buffer_too_small,      ///< the message is larger than the receive buffer; nothing was written
  config_failed,         ///< an implementation failed inside a real invocation
  config_mismatch,       ///< this rank cannot run the stamped config
  declaration_mismatch,  ///< two ranks declared one op differently
  role_conflict,         ///< two senders, two leaders, or none
  no_common_config,      ///< none of the given configs has both halves
  protocol_version,      ///< the other side speaks another version
  malformed,             ///< bytes or text in a wrong format
  unauthenticated,       ///< a wrong key or tag
  bad_argument,          ///< API misuse
  unavailable,           ///< something that is needed is missing on this machine
  io,                    ///< the operating system refused
  device_failed,         ///< a GPU or its driver refused or failed
  invariant_broken,      ///< a fault of parley itself: an invariant did not hold
  exception,             ///< user code threw something other than a `failure`
};

/// The error code for a number from elsewhere, such as a message; `otherwise` if the number is no error code.
constexpr errc errc_of(std::uint64_t code, errc otherwise) noexcept {
  const bool is_error =
      code > static_cast<std::uint64_t>(errc::pending) && code <= static_cast<std::uint64_t>(errc::exception);
  return is_error ? static_cast<errc>(code) : otherwise;
}

/// `timeout`, `peer_failed`, ...: the name that texts, files and JSON use.
std::string_view name(errc code) noexcept;

class error {
 public:
  error(errc code) noexcept : code_(code) {}  // NOLINT(google-explicit-constructor): `return errc::timeout;` reads well
  /// `began_with`: the root cause of the error that this one is made from.
  error(errc code, std::string text, const root_cause* began_with = nullptr);
  /// The text consists of the facts and `what`. `what` says what happened, what was expected and what to do.
  error(errc code, const error_facts& about, std::string_view what, const root_cause* began_with = nullptr);
  /// An error with a complete `text`, so the facts are not put in front. For errors that another rank wrote, or that are passed on.
  static error in_words(errc code, error_facts about, std::string text, const root_cause* began_with = nullptr);

  errc code() const noexcept { return code_; }
  /// The whole sentence: the code's name, then who, where and what to do.
  std::string what() const;
  /// The sentence without the code's name; empty if the error has no text.
  std::string text() const;
  /// The rank whose end caused this error; null if no other rank's end caused it.
  const root_cause* began_with() const noexcept;
  /// The facts of the error.
  const error_facts& about() const noexcept;

 private:
  struct sentence;
  errc code_;
  std::shared_ptr<const sentence> said_;
};

/// The exception that carries an `error`.
class failure : public std::exception {
 public:
  explicit failure(error e);
  const char* what() const noexcept override { return what_.c_str(); }
  const error& reason() const noexcept { return error_; }
  errc code() const noexcept { return error_.code(); }

 private:
  error error_;
  std::string what_;
};

[[noreturn]] void raise(error e);
/// The error that an exception carries; for an exception that is no `failure`, an `errc::exception` with its text.
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
