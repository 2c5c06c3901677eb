// Runs a grid: its blocks one after another, the threads of a block as fibers that take turns where they wait.
//
// A thread runs until it must wait for others, in a barrier or a warp primitive. When the last one arrives all of them
// become ready again. What CUDA leaves undefined ends the launch with an exception that names the places.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fibers.h"
#include "sanitizers.h"
#include "settings.h"
#include "vector_types.h"

namespace cuemu {

constexpr int kWarpSize = 32;
constexpr int kMostThreads = 1024;
constexpr int kMostWarps = kMostThreads / kWarpSize;
constexpr std::size_t kMostSharedBytes = 227 * 1024;
constexpr std::size_t kSharedAlignment = 16;
constexpr uint64_t kMostBlocksX = (uint64_t{1} << 31) - 1;
constexpr uint64_t kMostBlocksYZ = 65535;
constexpr unsigned kMostThreadsZ = 64;

// As a default argument: where the caller is.
struct Place {
  const char* file;
  int line;

  CUEMU_UNSEEN static constexpr Place current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

enum class State : uint8_t { kReady, kInWarpPrimitive, kInBarrier, kExited };

struct Warp;

struct Thread {
  Fiber fiber;
  Warp* warp;
  int number;  // of the block's threads
  int lane;    // of the warp's
  uint3 index;
  State state;
  Place place;  // where it last waited
};

enum class Primitive : uint8_t { kSync, kShuffle, kBallot };

// What a lane brings to a warp primitive, and takes from it.
struct Call {
  Primitive primitive;
  uint32_t mask;
  uint64_t value;
  int source;  // the lane whose value it wants
  uint64_t result;
};

struct Warp {
  Thread* threads[kWarpSize];
  Call calls[kWarpSize];
  uint32_t present;  // lanes that exist and have not exited
  uint32_t waiting;
  // For each mask by its lowest lane, of two syncs in turn: a lane may reach the next while another leaves this one.
  OrderingPoint syncs[kWarpSize][2];
  unsigned turns[kWarpSize];
};

// What the threads that reach a barrier say there.
struct Votes {
  bool any = false;
  bool all = true;
  int count = 0;
};

CUEMU_UNSEEN inline bool has_lane(uint32_t mask, int lane) { return (mask >> lane & 1) != 0; }

class Engine {
 public:
  using Body = void (*)(const void* kernel_call);

  // Runs body(kernel_call) on every thread.
  CUEMU_UNSEEN void run(dim3 grid, dim3 block, std::size_t shared_bytes, Body body, const void* kernel_call) {
    const std::lock_guard<std::mutex> one_grid_at_a_time(mutex_);
    check_sizes(grid, block, shared_bytes);
    order_ = settings().order;
    grid_ = grid;
    block_ = block;
    thread_count_ = static_cast<int>(block.x * block.y * block.z);
    body_ = body;
    kernel_call_ = kernel_call;
    host_.adopt_thread();
    const SharedMemory shared = allocate_shared(shared_bytes);
    shared_ = shared.get();
    for (const uint64_t number : block_order(uint64_t{grid.x} * grid.y * grid.z)) {
      block_index_ = {static_cast<unsigned>(number % grid.x), static_cast<unsigned>(number / grid.x % grid.y),
                      static_cast<unsigned>(number / (uint64_t{grid.x} * grid.y))};
      if (shared_bytes > 0) std::memset(shared_, 0xff, shared_bytes);  // NaN, as float and as double
      run_block();
    }
  }

  CUEMU_UNSEEN uint3 thread_index() const { return current_->index; }
  CUEMU_UNSEEN uint3 block_index() const { return block_index_; }
  CUEMU_UNSEEN dim3 block_size() const { return block_; }
  CUEMU_UNSEEN dim3 grid_size() const { return grid_; }
  CUEMU_UNSEEN int lane() const { return current_->lane; }
  CUEMU_UNSEEN void* shared_memory() const { return shared_; }

  // Waits for the whole block. Returns the votes of all its threads.
  __attribute__((noinline)) CUEMU_UNSEEN Votes wait_for_block(bool vote, Place place) {
    Thread& self = *current_;
    self.place = place;
    self.state = State::kInBarrier;
    votes_.any |= vote;
    votes_.all &= vote;
    votes_.count += vote;
    ++in_barrier_;
    OrderingPoint& barrier = barriers_[barrier_turn_];
    barrier.release();
    if (in_barrier_ == present_) {
      open_barrier();
      let_others_run();
    } else {
      run_next();
    }
    barrier.acquire();
    // Still those of this barrier: the next cannot open without this thread.
    return barrier_result_;
  }

  // Waits for the lanes of the mask. Returns what the primitive gives this one.
  __attribute__((noinline)) CUEMU_UNSEEN uint64_t wait_for_warp(Primitive primitive, uint32_t mask, uint64_t value,
                                                                int source, Place place) {
    Thread& self = *current_;
    Warp& warp = *self.warp;
    self.place = place;
    if (!has_lane(mask, self.lane)) fail("a lane is missing from the mask of its own warp primitive", self);
    if (mask & ~warp.present) fail("the mask of a warp primitive names a lane that exited or does not exist", self);
    warp.calls[self.lane] = {primitive, mask, value, source, 0};
    warp.waiting |= uint32_t{1} << self.lane;
    const int group = __builtin_ctz(mask);
    OrderingPoint& sync = warp.syncs[group][warp.turns[group] & 1];
    // CUDA promises no order of memory accesses for the other primitives.
    const bool orders = primitive == Primitive::kSync;
    if (orders) sync.release();
    if ((warp.waiting & mask) == mask) {
      finish(warp, self);
      let_others_run();
    } else {
      self.state = State::kInWarpPrimitive;
      run_next();
    }
    if (orders) sync.acquire();
    return warp.calls[self.lane].result;
  }

  // In random order, the running thread may have to wait for its turn here.
  CUEMU_UNSEEN void let_others_run() {
    if (order_ != Order::kRandom) return;
    make_ready(*current_);
    run_next();
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  using SharedMemory = std::unique_ptr<void, Free>;

  static void check_sizes(dim3 grid, dim3 block, std::size_t shared_bytes) {
    const auto between = [](uint64_t size, uint64_t most) { return size >= 1 && size <= most; };
    if (!between(grid.x, kMostBlocksX) || !between(grid.y, kMostBlocksYZ) || !between(grid.z, kMostBlocksYZ))
      throw std::runtime_error("cuemu: CUDA has no grid of this size");
    if (!between(block.x, kMostThreads) || !between(block.y, kMostThreads) || !between(block.z, kMostThreadsZ) ||
        uint64_t{block.x} * block.y * block.z > kMostThreads)
      throw std::runtime_error("cuemu: CUDA has no block of this size");
    if (shared_bytes > kMostSharedBytes) throw std::runtime_error("cuemu: too much dynamic shared memory");
  }

  // Of exactly this size, so that AddressSanitizer sees a step beyond its end; null where there is none.
  static SharedMemory allocate_shared(std::size_t bytes) {
    void* memory = nullptr;
    if (bytes > 0 && posix_memalign(&memory, kSharedAlignment, bytes) != 0) throw std::bad_alloc();
    return SharedMemory(memory);
  }

  std::vector<uint64_t> block_order(uint64_t count) const {
    std::vector<uint64_t> numbers(count);
    for (uint64_t i = 0; i < count; ++i) numbers[i] = order_ == Order::kDescending ? count - 1 - i : i;
    if (order_ == Order::kRandom)
      for (uint64_t i = count; i > 1; --i) std::swap(numbers[i - 1], numbers[settings().random_below(i)]);
    return numbers;
  }

  CUEMU_UNSEEN void run_block() {
    ready_first_ = 0;
    ready_count_ = 0;
    present_ = thread_count_;
    in_barrier_ = 0;
    votes_ = Votes{};
    current_ = nullptr;
    failure_ = nullptr;
    begin_.release();
    for (int number = 0; number < thread_count_; ++number) prepare_thread(number);
    run_next();
    for (int number = 0; number < thread_count_; ++number)
      if (threads_[number].state != State::kExited) threads_[number].fiber.abandon(end_);
    end_.acquire();
    if (failure_) throw std::runtime_error(failure_message());
    if (present_ > 0) throw std::runtime_error(deadlock_message());
  }

  CUEMU_UNSEEN void prepare_thread(int number) {
    Thread& thread = threads_[number];
    Warp& warp = warps_[number / kWarpSize];
    const unsigned n = static_cast<unsigned>(number);
    thread.number = number;
    thread.lane = number % kWarpSize;
    thread.index = {n % block_.x, n / block_.x % block_.y, n / (block_.x * block_.y)};
    thread.place = {"the start", 0};
    thread.warp = &warp;
    if (thread.lane == 0) {
      warp.present = 0;
      warp.waiting = 0;
    }
    warp.threads[thread.lane] = &thread;
    warp.present |= uint32_t{1} << thread.lane;
    thread.fiber.prepare(run_thread);
    make_ready(thread);
  }

  // What the fiber of a thread does.
  CUEMU_UNSEEN static void run_thread();

  CUEMU_UNSEEN void run_current_thread() {
    begin_.acquire();
    body_(kernel_call_);
    end_.release();
    Thread& self = *current_;
    self.state = State::kExited;
    self.warp->present &= ~(uint32_t{1} << self.lane);
    --present_;
    if (present_ > 0 && in_barrier_ == present_) open_barrier();
    run_next();
  }

  CUEMU_UNSEEN void make_ready(Thread& thread) {
    thread.state = State::kReady;
    ready_[(ready_first_ + ready_count_) % kMostThreads] = &thread;
    ++ready_count_;
  }

  CUEMU_UNSEEN Thread& take_ready() {
    const unsigned last = (ready_first_ + ready_count_ - 1) % kMostThreads;
    unsigned at = ready_first_;
    if (order_ == Order::kDescending) at = last;
    if (order_ == Order::kRandom)
      at = (ready_first_ + static_cast<unsigned>(settings().random_below(ready_count_))) % kMostThreads;
    Thread& taken = *ready_[at];
    --ready_count_;
    if (order_ == Order::kAscending)
      ready_first_ = (ready_first_ + 1) % kMostThreads;
    else
      ready_[at] = ready_[last];
    return taken;
  }

  // Runs another thread that is ready or, if there is none, returns to run_block().
  CUEMU_UNSEEN void run_next() { switch_to(ready_count_ > 0 ? &take_ready() : nullptr); }

  // Null: run_block(). Returns when the calling thread is switched to again.
  CUEMU_UNSEEN void switch_to(Thread* next) {
    Thread* const self = current_;
    if (next == self) return;
    current_ = next;
    Fiber& from = self ? self->fiber : host_;
    from.switch_to(next ? next->fiber : host_, self && self->state == State::kExited);
  }

  // Every thread that is left waits in the barrier.
  CUEMU_UNSEEN void open_barrier() {
    const Thread* first = nullptr;
    for (int i = 0; i < thread_count_; ++i) {
      Thread& thread = threads_[i];
      if (thread.state != State::kInBarrier) continue;
      if (present_ < thread_count_) fail("__syncthreads, but some threads of the block have exited", thread);
      if (!first) first = &thread;
      if (thread.place.line != first->place.line || std::strcmp(thread.place.file, first->place.file) != 0)
        fail("divergent __syncthreads", *first, &thread);
    }
    barrier_turn_ ^= 1;
    in_barrier_ = 0;
    barrier_result_ = votes_;
    votes_ = Votes{};
    for (int i = 0; i < thread_count_; ++i)
      if (&threads_[i] != current_) make_ready(threads_[i]);
    current_->state = State::kReady;
  }

  // Every lane of the mask of `last`, which runs, has come.
  CUEMU_UNSEEN void finish(Warp& warp, const Thread& last) {
    const Call& call = warp.calls[last.lane];
    const uint32_t mask = call.mask;
    uint32_t ballot = 0;
    for (int lane = 0; lane < kWarpSize; ++lane) {
      if (!has_lane(mask, lane)) continue;
      const Call& other = warp.calls[lane];
      if (other.mask != mask || other.primitive != call.primitive)
        fail("lanes of one mask wait in different warp primitives or with different masks", last, warp.threads[lane]);
      ballot |= uint32_t{other.value != 0} << lane;
    }
    if (call.primitive == Primitive::kSync) ++warp.turns[__builtin_ctz(mask)];
    constexpr uint64_t kUndefined = 0x7fc0dead7fc0deadu;  // NaN, as float and as double
    for (int lane = 0; lane < kWarpSize; ++lane) {
      if (!has_lane(mask, lane)) continue;
      Call& of_lane = warp.calls[lane];
      if (call.primitive == Primitive::kBallot) of_lane.result = ballot;
      if (call.primitive == Primitive::kShuffle)
        of_lane.result = has_lane(mask, of_lane.source) ? warp.calls[of_lane.source].value : kUndefined;
      if (lane != last.lane) make_ready(*warp.threads[lane]);
    }
    warp.waiting &= ~mask;
  }

  // Ends the launch. The text is made later, where the sanitizers may see it.
  [[noreturn]] CUEMU_UNSEEN void fail(const char* failure, const Thread& thread, const Thread* other = nullptr) {
    failure_ = failure;
    failed_ = &thread;
    failed_other_ = other;
    switch_to(nullptr);
    std::abort();
  }

  static std::string text(unsigned x, unsigned y, unsigned z) {
    return std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z);
  }

  static std::string text(Place place) { return place.file + (":" + std::to_string(place.line)); }

  static std::string text(const Thread& thread) {
    return "thread " + text(thread.index.x, thread.index.y, thread.index.z) + " at " + text(thread.place);
  }

  std::string block_text() const { return "block " + text(block_index_.x, block_index_.y, block_index_.z); }

  CUEMU_UNSEEN std::string failure_message() const {
    const std::string message = "cuemu: " + std::string(failure_) + " [" + block_text() + ", " + text(*failed_);
    return failed_other_ ? message + ", " + text(*failed_other_) + "]" : message + "]";
  }

  CUEMU_UNSEEN std::string deadlock_message() const {
    std::map<std::string, int> counts;
    for (int i = 0; i < thread_count_; ++i) {
      const Thread& thread = threads_[i];
      if (thread.state == State::kExited)
        ++counts["exited"];
      else if (thread.state == State::kInBarrier)
        ++counts["wait in __syncthreads at " + text(thread.place)];
      else
        ++counts["wait in a warp primitive at " + text(thread.place)];
    }
    std::string message = "cuemu: deadlock in " + block_text() + ":";
    for (const auto& [what, count] : counts) message += "\n  " + std::to_string(count) + " thread(s) " + what;
    return message;
  }

  std::mutex mutex_;
  Order order_ = Order::kAscending;
  dim3 grid_;
  dim3 block_;
  int thread_count_ = 0;
  Body body_ = nullptr;
  const void* kernel_call_ = nullptr;

  // of the block that runs
  uint3 block_index_{};
  void* shared_ = nullptr;
  Fiber host_;  // the thread that launched the grid
  Thread threads_[kMostThreads]{};
  Warp warps_[kMostWarps]{};
  Thread* current_ = nullptr;  // null: the host's turn
  Thread* ready_[kMostThreads]{};
  unsigned ready_first_ = 0;
  unsigned ready_count_ = 0;
  int present_ = 0;  // threads that have not exited
  OrderingPoint begin_;
  OrderingPoint end_;

  int in_barrier_ = 0;
  Votes votes_;
  Votes barrier_result_;
  // Two in turn: a thread may reach the next barrier while another leaves this one.
  OrderingPoint barriers_[2];
  int barrier_turn_ = 0;

  const char* failure_ = nullptr;
  const Thread* failed_ = nullptr;
  const Thread* failed_other_ = nullptr;
};

inline Engine engine;

CUEMU_UNSEEN inline void Engine::run_thread() { engine.run_current_thread(); }

// Runs a kernel on every thread of a grid.
template <class... Parameters, class... Arguments>
void run(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
         const Arguments&... arguments) {
  const auto call = [&] { kernel(static_cast<Parameters>(arguments)...); };
  const auto body = [](const void* kernel_call) { (*static_cast<decltype(call)*>(kernel_call))(); };
  engine.run(grid, block, shared_bytes, body, &call);
}

// What a test may want in the place of kernels: false for one that is to run itself.
using Replacement = bool (*)(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes, void** parameters);
inline Replacement replacement = nullptr;

// Runs kernel<<<grid, block, shared_bytes>>>(arguments...) to its end.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
            const Arguments&... arguments) {
  if (replacement != nullptr) {
    std::tuple<Parameters...> values(static_cast<Parameters>(arguments)...);
    const bool replaced = std::apply(
        [&](Parameters&... value) {
          void* parameters[] = {&value...};
          return replacement(reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, parameters);
        },
        values);
    if (replaced) return;
  }
  run(kernel, grid, block, shared_bytes, arguments...);
}

}  // namespace cuemu
