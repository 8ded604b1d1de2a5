#pragma once

// Packs the blocks of a layout into squares: `width` rows by `width` columns of blocks, neighbours among those that are
// left in the layout. A block-sparse product then loads each row and each column once for a square.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

namespace opforge::attention {

// Moves squares of one head, [rows][columns], from `layout` to `squares`: (head, row, column, number) of each block, a
// square at a time, row by row. A block that is taken becomes 0 in `layout`.
inline void take_squares(int32_t* layout, const int32_t* numbers, int64_t rows, int64_t columns, int32_t head,
                         int64_t width, std::vector<int32_t>& squares) {
    if (width > std::min(rows, columns)) return;  // there is none, and the lists below have that length
    // For each block, the size of the square that it is the last corner of, as far as the scan has come.
    std::vector<int64_t> sizes(static_cast<size_t>(rows * columns), 0);
    // The last `width` rows in which each column has a block, and the last `width` columns with a block. -1: none yet.
    std::vector<std::deque<int64_t>> above(static_cast<size_t>(columns), std::deque<int64_t>(width, -1));
    std::deque<int64_t> before(static_cast<size_t>(width), -1);
    const auto size_at = [&](int64_t row, int64_t column) {
        return row < 0 || column < 0 ? 0 : sizes[static_cast<size_t>(row * columns + column)];
    };
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t column = 0; column < columns; ++column) {
            if (layout[row * columns + column] == 0) continue;
            const int64_t left = before.back(), top = above[static_cast<size_t>(column)].back();
            int64_t size = 1 + std::min(size_at(row, left), std::min(size_at(top, column), size_at(top, left)));
            // A column between the two that has a later block would be in the middle of the square.
            for (int64_t between = left + 1; between < column; ++between) {
                if (above[static_cast<size_t>(between)].back() > top) size = 1;
            }
            sizes[static_cast<size_t>(row * columns + column)] = size;
            before.pop_front();
            before.push_back(column);
            above[static_cast<size_t>(column)].pop_front();
            above[static_cast<size_t>(column)].push_back(row);
            if (size != width) continue;
            for (const int64_t r : above[static_cast<size_t>(column)]) {
                for (const int64_t c : before) {
                    if (r < 0 || c < 0) continue;
                    const int64_t at = r * columns + c;
                    layout[at] = 0;
                    sizes[static_cast<size_t>(at)] = 0;
                    for (const int64_t value : {int64_t{head}, r, c, int64_t{numbers[at]}}) {
                        squares.push_back(static_cast<int32_t>(value));
                    }
                }
            }
        }
    }
}

}  // namespace opforge::attention
