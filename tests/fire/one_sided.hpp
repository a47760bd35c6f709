#pragma once
/// Ranks that move payloads by puts or gets, and where a fault strikes them: 1 sends to 2, 0 has no part in it.
///
/// | scenario | steps of the sender | steps of the receiver |
/// |---|---|---|
/// | `puts`, `lent_puts`, `large_puts` | `holds_credit`, `writes`, `written`, `fenced`, `sent` | `gave_credit`, `is_written` (`puts`, `large_puts`), `landed`, `received` |
/// | `gets`, `lent_gets` | `offers`, `offered`, `is_read`, `sent` | `has_offer`, `reads`, `told`, `received` |
///
/// Each is a step of a real invocation, once trials have begun and rehearsals are over; most are the moment before or after a message is handed to UCX.
/// The `lent_` ones move payloads that the receiver has the kernel copy, the `large_` one payloads that UCX moves by and by.
///
/// Whoever is left keeps its memory, filled anew, until its input ends, and says whether anything was written there afterwards; and
/// at any time whether something was written beside a payload, or came that is not what was sent.
#include <parley/run.hpp>

namespace fire {

void puts(parley::ops::job& here);
void lent_puts(parley::ops::job& here);
void large_puts(parley::ops::job& here);
void gets(parley::ops::job& here);
void lent_gets(parley::ops::job& here);

}  // namespace fire
