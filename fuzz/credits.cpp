// Gives and revokes credits like a peer that breaks every rule (docs/protocol.md, Edges).
#include "fuzz.hpp"

#include <parley/actors/edge/credits.hpp>

#include <set>

namespace parley::fuzz {

void credits(input bytes) {
  choices from(bytes);
  actors::credits_held held;
  actors::credits_given given;
  std::uint64_t revoked = 0;
  std::uint64_t next = 0;
  std::uint64_t last_number = 0;
  std::uint64_t next_index = 0;
  while (!from.empty()) {
    switch (from.below(7)) {
      case 0: {
        actors::held_credit c;
        c.index = from.below(3) == 2 ? ~std::uint64_t{from.byte()} : next + from.below(8);
        c.number = from.below(3) == 2 ? ~std::uint64_t{from.byte()} : from.byte();
        c.capacity = from.byte();
        const bool allowed = c.index >= next && c.number > revoked;
        const bool was_taken = held.take(c, next);
        require(!was_taken || allowed, "R3: a credit of the past, or one that was revoked, is never taken");
        break;
      }
      case 1:
        revoked = std::max<std::uint64_t>(revoked, from.byte());
        held.revoke(revoked);
        break;
      case 2: held.begun(next++); break;
      case 3: {
        const std::uint64_t wanted = from.byte();
        const auto* c = held.find(next, wanted);
        if (c == nullptr) break;
        require(c->index == next && c->number > revoked && c->capacity >= wanted, "what is found may be used");
        break;
      }
      case 4:
        if (!given.may_give()) break;
        {
          const std::uint64_t number = given.give(next_index++);
          require(number > last_number, "R3: numbers are never used again");
          last_number = number;
        }
        break;
      case 5:
        if (given.any_out()) {
          require(given.revoke() <= last_number, "only what was given is revoked");
          require(!given.may_give(), "R4: none is given while a revoke is unanswered");
        }
        break;
      default: {
        const std::uint64_t number = from.byte();
        const auto open = given.revoking();
        require(given.answered(number) == (open && *open == number), "only the answer to the open revoke counts");
        break;
      }
    }
    require(held.size() <= actors::credits_held::most, "a peer cannot fill this rank's memory");
  }
}

}  // namespace parley::fuzz
