#pragma once
/// Ranks that move payloads by puts or gets, and the steps at which a fault strikes them. Rank 1 sends to rank 2; rank 0 takes no part.
///
/// | scenario | steps of the sender | steps of the receiver |
/// |---|---|---|
/// | `puts`, `lent_puts`, `large_puts` | `holds_credit`, `writes`, `written`, `fenced`, `sent` | `gave_credit`, `is_written` (`puts`, `large_puts`), `landed`, `received` |
/// | `gets`, `lent_gets` | `offers`, `offered`, `is_read`, `sent` | `has_offer`, `reads`, `told`, `received` |
///
/// Each step belongs to a real invocation, after trials have begun and rehearsals are over. Most steps are the moment before or after a
/// message is passed to UCX. In the `lent_` scenarios the receiver has the kernel copy the payload; in `large_puts` UCX moves it piece
/// by piece.
///
/// A survivor refills its memory, keeps it until its input ends, and prints whether anything was written there afterwards. At any time
/// it prints whether memory next to a payload was written, or a payload differed from what was sent.
#include <parley/run.hpp>

namespace fire {

void puts(parley::ops::job& here);
void lent_puts(parley::ops::job& here);
void large_puts(parley::ops::job& here);
void gets(parley::ops::job& here);
void lent_gets(parley::ops::job& here);

}  // namespace fire
