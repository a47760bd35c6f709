#include <parley/tuning/config.hpp>

#include <algorithm>

#include <doctest/doctest.h>

#include <parley/tests/tuning/generator.hpp>

using namespace parley::tuning;

namespace {

config_identity chunked(std::uint64_t chunk_bytes, std::uint64_t in_flight) {
  return {"chunked", {{"in_flight", in_flight}, {"chunk_bytes", chunk_bytes}}, "am_chunks", 1};
}

config_identity direct() { return {"direct", {}, "am", 1}; }

}  // namespace

TEST_CASE("a config's text is its name and its sorted parameters, without commas") {
  CHECK(config_id(direct()) == "direct");
  CHECK(config_id(chunked(262144, 4)) == "chunked(chunk_bytes=262144 in_flight=4)");
}

TEST_CASE("a config's text reads back as the same config") {
  const config_identity parsed = parse_config_id("chunked(chunk_bytes=262144 in_flight=4)").value();
  CHECK(parsed.name == "chunked");
  CHECK(parsed.number("chunk_bytes") == 262144);
  CHECK(parsed.number("in_flight") == 4);
  CHECK_FALSE(parsed.number("depth"));
  CHECK(config_id(parsed) == config_id(chunked(262144, 4)));
}

TEST_CASE("parameters may be written in any order, with commas and spaces") {
  for (const char* text : {"chunked(in_flight=4,chunk_bytes=262144)", " chunked( in_flight=4 , chunk_bytes=262144 ) ",
                           "chunked (chunk_bytes=262144, in_flight=4)"}) {
    CHECK(config_id(parse_config_id(text).value()) == "chunked(chunk_bytes=262144 in_flight=4)");
  }
  CHECK(config_id(parse_config_id("direct()").value()) == "direct");
}

TEST_CASE("text that is no config is refused with advice on how to write one") {
  for (const char* text :
       {"", "(", ")", "()", "chunked(", "chunked(chunk_bytes=26", "chunked(chunk_bytes)", "chunked(=4)", "chunked(a=)",
        "chunked(a=1 a=2)", "chunked(a=1)x", "two words", "a=b", "Default", "a(b=(c))"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_config_id(text));
  }
  CHECK(parse_config_id("chunked(chunk_bytes=26").reason().text.find("parenthesis") != std::string::npos);
  CHECK(parse_config_id("chunked(a=1 a=2)").reason().kind == fault::duplicate);
}

TEST_CASE("any bytes may be given to the config parser, and each config that it accepts has a canonical text") {
  testing::generator random(7);
  for (int i = 0; i < 20000; ++i) {
    const std::string text = random.text(40, i % 2 == 0 ? "ab=() ,1" : "");
    const auto parsed = parse_config_id(text);
    if (!parsed) continue;
    const std::string id = config_id(parsed.value());
    CHECK(id.find(',') == std::string::npos);
    CHECK(config_id(parse_config_id(id).value()) == id);
  }
}

TEST_CASE("a digest ignores the order of parameters and nothing else") {
  const std::uint64_t d = digest(chunked(262144, 4));
  config_identity reordered{"chunked", {{"chunk_bytes", "262144"}, {"in_flight", "4"}}, "am_chunks", 1};
  CHECK(digest(reordered) == d);
  CHECK(digest(chunked(262144, 5)) != d);
  CHECK(digest(chunked(262145, 4)) != d);
  config_identity other = chunked(262144, 4);
  other.wire_class = "put";
  CHECK(digest(other) != d);
  other = chunked(262144, 4);
  other.abi = 2;
  CHECK(digest(other) != d);
  other = chunked(262144, 4);
  other.name = "chunks";
  CHECK(digest(other) != d);
}

TEST_CASE("digests do not depend on the machine or the version of this library") {
  CHECK(digest(direct()) == 0xfeaf11d0b47c8286ULL);
  CHECK(digest(chunked(262144, 4)) == 0x0a2e74d73b24aacdULL);
}

TEST_CASE("a hundred thousand configs have different digests, none of them 0") {
  std::vector<std::uint64_t> digests;
  for (std::uint64_t i = 0; i < 100000; ++i) digests.push_back(digest(chunked(i % 1000, i / 1000)));
  std::sort(digests.begin(), digests.end());
  CHECK(std::unique(digests.begin(), digests.end()) == digests.end());
  CHECK(digests.front() != 0);
}

TEST_CASE("a catalogue keeps its order and finds configs by digest and by text") {
  const catalogue c = catalogue::make({direct(), chunked(1 << 20, 4), chunked(262144, 1)}).value();
  REQUIRE(c.size() == 3);
  CHECK(c[0].id == "direct");
  CHECK(c[2].id == "chunked(chunk_bytes=262144 in_flight=1)");
  for (std::size_t i = 0; i < c.size(); ++i) {
    CHECK(c.find(c[i].digest) == i);
    CHECK(c.find(c[i].id) == i);
  }
  CHECK_FALSE(c.find("nothing"));
  CHECK_FALSE(c.find(std::uint64_t{0}));
}

TEST_CASE("a catalogue's hash depends on its order") {
  const auto ab = catalogue::make({direct(), chunked(1, 1)}).value();
  const auto ba = catalogue::make({chunked(1, 1), direct()}).value();
  CHECK(ab.hash() != ba.hash());
  CHECK(ab.hash() == catalogue::make({direct(), chunked(1, 1)}).value().hash());
}

TEST_CASE("an empty catalogue is refused") { CHECK(catalogue::make({}).reason().kind == fault::empty); }

TEST_CASE("a catalogue that lists a config twice is refused with that config and both places") {
  const auto made =
      catalogue::make({direct(), chunked(1, 2), {"chunked", {{"chunk_bytes", 1}, {"in_flight", 2}}, "put"}});
  REQUIRE_FALSE(made);
  CHECK(made.reason().kind == fault::duplicate);
  CHECK(made.reason().text.find("`chunked(chunk_bytes=1 in_flight=2)` twice, at 1 and 2") != std::string::npos);
}

TEST_CASE("a catalogue of 4096 configs is accepted and one of 4097 is refused") {
  std::vector<config_identity> configs;
  for (std::uint64_t i = 0; i < 4096; ++i) configs.push_back(chunked(i, 1));
  CHECK(catalogue::make(configs));
  configs.push_back(direct());
  CHECK(catalogue::make(configs).reason().kind == fault::too_many);
}

TEST_CASE("configs with impossible names, values or sizes are refused") {
  CHECK_FALSE(catalogue::make({{""}}));
  CHECK_FALSE(catalogue::make({{"a,b"}}));
  CHECK_FALSE(catalogue::make({{"a b"}}));
  CHECK_FALSE(catalogue::make({{"a\n"}}));
  CHECK_FALSE(catalogue::make({{"Default"}}));
  CHECK_FALSE(catalogue::make({{std::string(65, 'x')}}));
  CHECK_FALSE(catalogue::make({{"a", {{"p", std::string(129, 'x')}}}}));
  CHECK_FALSE(catalogue::make({{"a", {{"p", "1"}, {"p", "2"}}}}));
  CHECK_FALSE(catalogue::make({{"a", {}, "wire class"}}));
  CHECK_FALSE(catalogue::make({{"a", std::vector<parameter>(33, parameter{"p", "1"})}}));
  CHECK(catalogue::make({{"a", {{"p", "1.5e-3"}}, "wire_class", 3}}));
}
