#include <parley/actors/letters/pieces.hpp>

#include <parley/runtime/random.hpp>

#include <doctest/doctest.h>

#include <utility>
#include <vector>

using namespace parley::actors;
using parley::runtime::random_stream;

namespace {

std::vector<std::byte> body_of(std::size_t size) {
  std::vector<std::byte> body(size);
  for (std::size_t i = 0; i < size; ++i) body[i] = static_cast<std::byte>(i * 31 + (i >> 9U));
  return body;
}

}  // namespace

TEST_CASE("pieces form the whole once, in whatever order they arrive") {
  for (const std::size_t size :
       {std::size_t{1}, limits::piece_bytes, limits::piece_bytes + 1, 5 * limits::piece_bytes}) {
    const auto body = body_of(size);
    auto pieces = in_pieces(7, 3, body);
    CHECK(pieces.size() == (size + limits::piece_bytes - 1) / limits::piece_bytes);
    random_stream dice(size, 1);
    piece_collector collector;
    std::optional<piece_collector::whole> whole;
    const auto again = pieces;
    for (std::size_t left = pieces.size(); left != 0; --left) {
      CHECK_FALSE(whole);
      const auto at = static_cast<std::ptrdiff_t>(dice.below(left));
      piece copy = pieces[static_cast<std::size_t>(at)];
      whole = collector.add(5, std::move(pieces[static_cast<std::size_t>(at)]));
      CHECK_FALSE(collector.add(5, std::move(copy)));  // a repeated piece
      pieces.erase(pieces.begin() + at);
    }
    REQUIRE(whole);
    CHECK(whole->type == 7);
    CHECK(whole->body == body);
    for (piece p : again) CHECK_FALSE(collector.add(5, std::move(p)));
    CHECK(collector.refused() == 0);
  }
}

TEST_CASE("each source has its own whole, and a newer whole replaces an unfinished older one") {
  piece_collector collector;
  const auto body = body_of(limits::piece_bytes + 10);
  const auto first = in_pieces(1, 1, body), second = in_pieces(1, 2, body);
  CHECK_FALSE(collector.add(0, piece(first[0])));
  CHECK_FALSE(collector.add(1, piece(first[1])));
  CHECK_FALSE(collector.add(0, piece(second[1])));
  CHECK_FALSE(collector.add(0, piece(first[1])));
  CHECK(collector.add(1, piece(first[0])));
  CHECK(collector.add(0, piece(second[0])));
}

TEST_CASE("impossible pieces are refused, and the correct pieces still form the whole") {
  piece_collector collector;
  const auto body = body_of(2 * limits::piece_bytes);
  const auto good = in_pieces(1, 1, body);
  const auto refuse = [&](auto&& spoil) {
    piece p = good[1];
    spoil(p);
    const auto before = collector.refused();
    CHECK_FALSE(collector.add(0, std::move(p)));
    CHECK(collector.refused() == before + 1);
  };
  CHECK_FALSE(collector.add(0, piece(good[0])));
  refuse([](piece& p) { p.count = 0; });
  refuse([](piece& p) { p.count = limits::pieces + 1; });
  refuse([](piece& p) { p.count = 3; });
  refuse([](piece& p) { p.index = 2; });
  refuse([](piece& p) { p.index = 0xffffffff; });
  refuse([](piece& p) { p.bytes.clear(); });
  refuse([](piece& p) { p.bytes.resize(limits::piece_bytes + 1); });
  refuse([](piece& p) { p.whole_type = 2; });
  const auto whole = collector.add(0, piece(good[1]));
  REQUIRE(whole);
  CHECK(whole->body == body);
}
