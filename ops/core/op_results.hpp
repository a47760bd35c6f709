#pragma once
/// Converts between an op's decisions and the entries of a results file.
///
///     activations/0>1,16MiB_bf16,chunked(chunk_bytes=262144 in_flight=4),1.262
///
///     op_memory m = recall_op(file, declaration, ids);               // its entries, and warnings about them
///     if (auto entry = entry_of(declaration, id_of_the_winner, decision)) file.add(*entry);
///
/// If the machines of an op differ, the op's name in the file includes their combination: `activations/0>1@9f3c…`. An entry for a config
/// that the op does not have on this rank causes a warning, and the leader counts it as a miss, unless another rank has that config.
/// Entries of another dtype also cause a warning if there are no other entries.
#include <parley/actors/agreement/participant.hpp>
#include <parley/actors/declaration.hpp>
#include <parley/tuning/results/results.hpp>

#include <optional>
#include <string>
#include <vector>

namespace parley::ops {

struct op_memory {
  std::vector<actors::remembered_best> entries;
  std::vector<std::string> warnings;
};

/// Returns the entries for keys that this op can have. One message carries them, so their number is bounded. `ids`: this rank's configs.
op_memory recall_op(const tuning::results_file& file, const actors::op_declaration& op,
                    const std::vector<std::string>& ids);

/// Returns nothing for a decision that was not measured: an entry for it would pin the default permanently.
std::optional<tuning::result_entry> entry_of(const actors::op_declaration& op, const std::string* id,
                                             const actors::decision_record& decision);

/// `activations/0>1`. For more than 16 ranks: the first and the last rank, how many there are, and a part of the op's id.
std::string entry_name(const actors::op_declaration& op);

}  // namespace parley::ops
