// A fiber: a function that runs on a stack of its own until it switches to another fiber.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "sanitizers.h"

// Only x86-64 has a switch of its own here. CUEMU_UCONTEXT asks for the portable one, many times slower as it makes
// system calls.
#if !defined(__x86_64__) && !defined(CUEMU_UCONTEXT)
#define CUEMU_UCONTEXT 1
#endif

#if defined(CUEMU_UCONTEXT)
#include <ucontext.h>
#endif

namespace cuemu {

#if !defined(CUEMU_UCONTEXT)
// Saves the registers that a callee must preserve on the running stack, whose pointer goes to *from, and restores
// those that another call saved on the stack `to`. It returns where that call was made.
__attribute__((naked, noinline, no_sanitize("address", "thread", "undefined"))) inline void switch_stack(
    void** /*from*/, void* /*to*/) {
  asm volatile(
      "pushq %rbp\n\t"
      "pushq %rbx\n\t"
      "pushq %r12\n\t"
      "pushq %r13\n\t"
      "pushq %r14\n\t"
      "pushq %r15\n\t"
      "movq %rsp, (%rdi)\n\t"
      "movq %rsi, %rsp\n\t"
      "popq %r15\n\t"
      "popq %r14\n\t"
      "popq %r13\n\t"
      "popq %r12\n\t"
      "popq %rbx\n\t"
      "popq %rbp\n\t"
      "ret");
}
#endif

class Fiber {
 public:
  using Entry = void (*)();

  // Makes this the fiber that the calling thread already is.
  CUEMU_UNSEEN void adopt_thread() { sanitized_.adopt_thread(); }

  // The first switch to the fiber calls `entry`, which must never return.
  CUEMU_UNSEEN void prepare(Entry entry) {
    if (!stack_) stack_ = allocate_stack();
    sanitized_.prepare(stack_, kStackSize);
    entry_ = entry;
#if defined(CUEMU_UCONTEXT)
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_;
    context_.uc_stack.ss_size = kStackSize;
    context_.uc_link = nullptr;
    makecontext(&context_, begin, 0);
#else
    // As switch_stack() leaves a stack: six registers and a return address. A function expects its stack to be aligned
    // to 16 bytes but for its own return address, which is null as nothing called it.
    constexpr int kRegisters = 6;
    void** top = reinterpret_cast<void**>(stack_ + kStackSize);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(&begin);
    top -= kRegisters;
    std::memset(top, 0, kRegisters * sizeof(void*));
    stack_pointer_ = top;
#endif
  }

  // Called on this fiber; returns when another one switches back, which never happens if it leaves `for_ever`.
  __attribute__((noinline)) CUEMU_UNSEEN void switch_to(Fiber& to, bool for_ever) {
    left_ = this;
    entered_ = &to;
    sanitized_.leave_for(to.sanitized_, for_ever);
#if defined(CUEMU_UCONTEXT)
    swapcontext(&context_, &to.context_);
#else
    switch_stack(&stack_pointer_, to.stack_pointer_);
#endif
    sanitized_.arrive(left_->sanitized_);
  }

  // What the fiber did happens before what others do after they acquire the point. It must not run again.
  CUEMU_UNSEEN void abandon(OrderingPoint& point) { sanitized_.release(point); }

 private:
  static constexpr std::size_t kStackSize = 128 * 1024;

  CUEMU_UNSEEN static void begin() {
    entered_->sanitized_.arrive(left_->sanitized_);
    entered_->entry_();
    std::abort();
  }

  // Stacks are kept for later launches. A page that may not be touched lies below each.
  CUEMU_UNSEEN static char* allocate_stack() {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    void* const memory = mmap(nullptr, page + kStackSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    mprotect(memory, page, PROT_NONE);
    return static_cast<char*>(memory) + page;
  }

  // Those of the last switch: a new stack has no place of its own for them.
  inline static Fiber* left_ = nullptr;
  inline static Fiber* entered_ = nullptr;

  char* stack_ = nullptr;
  Entry entry_ = nullptr;
  SanitizedStack sanitized_;
#if defined(CUEMU_UCONTEXT)
  ucontext_t context_{};
#else
  void* stack_pointer_ = nullptr;
#endif
};

}  // namespace cuemu
