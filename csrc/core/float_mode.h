// Subnormal floats are flushed to zero while kernels run: tiny softmax weights would cost a factor of four otherwise.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace octavo {

// Sets flush-to-zero and denormals-are-zero for the current thread, and puts the caller's mode back at the end.
class FlushSubnormals {
 public:
#if defined(__SSE__)
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  unsigned saved_;
#else
  FlushSubnormals() {}
  ~FlushSubnormals() {}
#endif

 public:
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;
};

}  // namespace octavo
