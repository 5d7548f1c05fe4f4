// Which kernel tables this build has, and which of them this machine runs.
#pragma once

#include <string_view>
#include <vector>

#include "kernels/table.h"

namespace octavo {

// The tables that run with these features, best first; "scalar" is always the last.
std::vector<const KernelTable*> supported_tables(Features available);

// The named table, or the best one for an empty name; null if it does not exist or the machine cannot run it.
const KernelTable* choose_table(std::string_view name, Features available);

}  // namespace octavo
