#include <parley/transports/join/siphash.hpp>

#include <parley/error.hpp>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <cstring>

namespace parley::transports {
namespace {

[[noreturn]] void refuse(const char* step) {
  runtime::raise({runtime::errc::unavailable, std::string("OpenSSL cannot ") + step +
                                                  " SipHash; its default provider is needed (see openssl.cnf)"});
}

}  // namespace

void siphash::freed::operator()(evp_mac_ctx_st* context) const noexcept { EVP_MAC_CTX_free(context); }

siphash::siphash(std::span<const std::byte, key_bytes> key) {
  std::memcpy(key_.data(), key.data(), key_bytes);
  EVP_MAC* const algorithm = EVP_MAC_fetch(nullptr, OSSL_MAC_NAME_SIPHASH, nullptr);
  if (algorithm == nullptr) refuse("find");
  context_.reset(EVP_MAC_CTX_new(algorithm));
  EVP_MAC_free(algorithm);
  std::size_t tag_bytes = sizeof(std::uint64_t);
  const OSSL_PARAM settings[] = {OSSL_PARAM_construct_size_t(OSSL_MAC_PARAM_SIZE, &tag_bytes),
                                 OSSL_PARAM_construct_end()};
  if (!context_ || EVP_MAC_CTX_set_params(context_.get(), settings) != 1) refuse("set up");
}

siphash::siphash(siphash&& other) noexcept : context_(std::move(other.context_)), key_(other.key_) {
  OPENSSL_cleanse(other.key_.data(), key_bytes);
}

siphash::~siphash() { OPENSSL_cleanse(key_.data(), key_bytes); }

std::uint64_t siphash::tag(std::span<const std::byte> first, std::span<const std::byte> second) {
  const auto add = [&](std::span<const std::byte> piece) {
    return piece.empty() ||
           EVP_MAC_update(context_.get(), reinterpret_cast<const unsigned char*>(piece.data()), piece.size()) == 1;
  };
  // Set the key each time: some versions of OpenSSL 3 do not start over without it, and it costs no more.
  unsigned char bytes[sizeof(std::uint64_t)];
  std::size_t length = 0;
  if (EVP_MAC_init(context_.get(), key_.data(), key_bytes, nullptr) != 1 || !add(first) || !add(second) ||
      EVP_MAC_final(context_.get(), bytes, &length, sizeof bytes) != 1 || length != sizeof bytes) {
    refuse("compute");
  }
  std::uint64_t value = 0;
  for (std::size_t i = sizeof bytes; i-- > 0;) value = value << 8U | bytes[i];
  return value;
}

bool siphash::verify(std::uint64_t claimed, std::span<const std::byte> first, std::span<const std::byte> second) {
  return (tag(first, second) ^ claimed) == 0;  // takes the same time for every difference
}

}  // namespace parley::transports
