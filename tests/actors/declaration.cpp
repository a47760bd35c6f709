// The text that describes how two declarations of one op differ.
#include <parley/actors/declaration.hpp>

#include <doctest/doctest.h>

#include <string>

using namespace parley::actors;

namespace {

std::string told(const op_declaration& theirs, const op_declaration& ours) {
  return difference("rank 1", theirs.text(), "rank 0", ours.text());
}

}  // namespace

TEST_CASE("the text on two different declarations names only the fields that differ, with both values") {
  const op_declaration ours = declare_edge("activations", 0, 1, "bf16");
  op_declaration theirs = declare_edge("activations", 0, 1, "fp32");
  CHECK(told(theirs, ours) == "rank 1 declares dtype fp32, rank 0 declares dtype bf16");
  theirs.default_config = "direct";
  CHECK(told(theirs, ours).find("default direct") != std::string::npos);
}

TEST_CASE("the text on two different default configs with one name says that they differ") {
  op_declaration ours = declare_edge("activations", 0, 1, "bf16");
  ours.default_config = "usual";
  ours.default_digest = 1;
  op_declaration theirs = ours;
  theirs.default_digest = 2;
  CHECK(ours.hash() != theirs.hash());
  CHECK(told(theirs, ours) ==
        "rank 1 and rank 0 use one name for default configs with different wire classes, parameters or ABIs");
}
