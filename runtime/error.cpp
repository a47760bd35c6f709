#include <parley/error.hpp>

#include <memory>
#include <string>
#include <utility>

namespace parley::runtime {

std::string_view name(errc code) noexcept {
  switch (code) {
    case errc::none: return "none";
    case errc::pending: return "pending";
    case errc::timeout: return "timeout";
    case errc::cancelled: return "cancelled";
    case errc::closed: return "closed";
    case errc::full: return "full";
    case errc::peer_failed: return "peer_failed";
    case errc::peer_restarted: return "peer_restarted";
    case errc::fenced: return "fenced";
    case errc::send_failed: return "send_failed";
    case errc::buffer_too_small: return "buffer_too_small";
    case errc::config_failed: return "config_failed";
    case errc::config_mismatch: return "config_mismatch";
    case errc::declaration_mismatch: return "declaration_mismatch";
    case errc::role_conflict: return "role_conflict";
    case errc::no_common_config: return "no_common_config";
    case errc::protocol_version: return "protocol_version";
    case errc::malformed: return "malformed";
    case errc::unauthenticated: return "unauthenticated";
    case errc::bad_argument: return "bad_argument";
    case errc::unavailable: return "unavailable";
    case errc::io: return "io";
    case errc::device_failed: return "device_failed";
    case errc::invariant_broken: return "invariant_broken";
    case errc::exception: return "exception";
  }
  return "unknown";
}

struct error::sentence {
  sentence(error_facts facts, std::string words, const root_cause* cause)
      : about(std::move(facts)), text(std::move(words)),
        began_with(cause == nullptr ? nullptr : std::make_unique<const root_cause>(*cause)) {}
  error_facts about;
  std::string text;
  std::unique_ptr<const root_cause> began_with;
};

error::error(errc code, std::string text, const root_cause* began_with)
    : code_(code), said_(std::make_shared<const sentence>(error_facts(), std::move(text), began_with)) {}

error::error(errc code, const error_facts& about, std::string_view what, const root_cause* began_with)
    : code_(code),
      said_(std::make_shared<const sentence>(about, words_of(about).append(": ").append(what), began_with)) {}

error error::in_words(errc code, error_facts about, std::string text, const root_cause* began_with) {
  error made(code);
  made.said_ = std::make_shared<const sentence>(std::move(about), std::move(text), began_with);
  return made;
}

std::string error::text() const { return said_ ? said_->text : std::string(); }

const root_cause* error::began_with() const noexcept { return said_ ? said_->began_with.get() : nullptr; }

const error_facts& error::about() const noexcept {
  static const error_facts nothing;
  return said_ ? said_->about : nothing;
}

std::string error::what() const {
  std::string whole(name(code_));
  if (said_) whole.append(": ").append(said_->text);
  return whole;
}

failure::failure(error e) : error_(std::move(e)), what_(error_.what()) {}

error describe(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const failure& f) {
    return f.reason();
  } catch (const std::exception& e) {
    return {errc::exception, e.what()};
  } catch (...) {
    return errc::exception;
  }
}

void raise(error e) { throw failure(std::move(e)); }

}  // namespace parley::runtime
