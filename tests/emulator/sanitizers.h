// What AddressSanitizer and ThreadSanitizer must be told: which stack runs, and what barriers order.
#pragma once

#include <cstddef>

// The emulator's own numbers are shared by all fibers without any barrier between them: ThreadSanitizer must not see
// its functions. They use plain arrays, since it would see the standard containers' functions.
#define CUEMU_UNSEEN __attribute__((no_sanitize("thread")))

#if defined(__has_feature)
#define CUEMU_HAS_FEATURE(feature) __has_feature(feature)
#else
#define CUEMU_HAS_FEATURE(feature) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || CUEMU_HAS_FEATURE(address_sanitizer)
#define CUEMU_ADDRESS_SANITIZER 1
extern "C" {
void __sanitizer_start_switch_fiber(void** save_fake_stack, const void* bottom, std::size_t size);
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** old_bottom, std::size_t* old_size);
void __asan_unpoison_memory_region(const volatile void* memory, std::size_t size);
}
#endif

#if defined(__SANITIZE_THREAD__) || CUEMU_HAS_FEATURE(thread_sanitizer)
#define CUEMU_THREAD_SANITIZER 1
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace cuemu {

// All that fibers did before they released a point in time happens before what others do after they acquire it.
class OrderingPoint {
 public:
  CUEMU_UNSEEN void release() {
#if defined(CUEMU_THREAD_SANITIZER)
    __tsan_release(&address_);
#endif
  }

  CUEMU_UNSEEN void acquire() {
#if defined(CUEMU_THREAD_SANITIZER)
    __tsan_acquire(&address_);
#endif
  }

 private:
  char address_ = 0;
};

// What the sanitizers know of a stack.
class SanitizedStack {
 public:
  CUEMU_UNSEEN void adopt_thread() {
#if defined(CUEMU_THREAD_SANITIZER)
    fiber_ = __tsan_get_current_fiber();
#endif
  }

  // Frames that an earlier fiber left on the stack without returning are gone.
  CUEMU_UNSEEN void prepare([[maybe_unused]] const char* bottom, [[maybe_unused]] std::size_t size) {
#if defined(CUEMU_ADDRESS_SANITIZER)
    fake_stack_ = nullptr;
    bottom_ = bottom;
    size_ = size;
    __asan_unpoison_memory_region(bottom, size);
#endif
#if defined(CUEMU_THREAD_SANITIZER)
    // Kept with the stack: another would race with this one's use of it.
    if (!fiber_) fiber_ = __tsan_create_fiber(0);
#endif
  }

  CUEMU_UNSEEN void leave_for([[maybe_unused]] const SanitizedStack& to, [[maybe_unused]] bool for_ever) {
#if defined(CUEMU_THREAD_SANITIZER)
    __tsan_switch_to_fiber(to.fiber_, kOrdersNothing);
#endif
#if defined(CUEMU_ADDRESS_SANITIZER)
    __sanitizer_start_switch_fiber(for_ever ? nullptr : &fake_stack_, to.bottom_, to.size_);
#endif
  }

  // `from` learns its bounds: no other way tells those of a thread's own stack.
  CUEMU_UNSEEN void arrive([[maybe_unused]] SanitizedStack& from) {
#if defined(CUEMU_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(fake_stack_, &from.bottom_, &from.size_);
#endif
  }

  // Another fiber does it for this one, which will not run again.
  CUEMU_UNSEEN void release([[maybe_unused]] OrderingPoint& point) {
#if defined(CUEMU_THREAD_SANITIZER)
    void* const running = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber_, kOrdersNothing);
    point.release();
    __tsan_switch_to_fiber(running, kOrdersNothing);
#endif
  }

 private:
#if defined(CUEMU_ADDRESS_SANITIZER)
  void* fake_stack_ = nullptr;
  const void* bottom_ = nullptr;
  std::size_t size_ = 0;
#endif
#if defined(CUEMU_THREAD_SANITIZER)
  static constexpr unsigned kOrdersNothing = 1;  // __tsan_switch_to_fiber_no_sync

  void* fiber_ = nullptr;
#endif
};

}  // namespace cuemu
