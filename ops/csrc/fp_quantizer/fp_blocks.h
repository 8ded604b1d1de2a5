#pragma once

// encode_block, Decoder and largest_magnitude, for the CPU level that this unit is compiled for.

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "fp_decoding_avx512.h"
#include "fp_encoding_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "fp_blocks_avx2.h"
#else
#include "fp_blocks_plain.h"

namespace opforge::cpu {

using plain::Decoder, plain::encode_block, plain::kTableGroup, plain::largest_magnitude;

}  // namespace opforge::cpu
#endif
