#pragma once

// What the loader sets of this library: in how many chunks a tensor goes at least, before the chunks become larger.

#include "layout.h"

namespace opforge::shm {

// Writes the rows that are set to the header of a new group.
void write_tuned(Header& header);

}  // namespace opforge::shm
