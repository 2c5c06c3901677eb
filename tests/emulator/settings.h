// What CUDA leaves open and a kernel must not depend on: the order of threads and blocks, and the errors of
// approximate functions.
//
// The environment sets both at first:
//   CUEMU_ORDER=ascending | descending | random:<seed>
//   CUEMU_FUZZ=<ulp>
#pragma once

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "sanitizers.h"

namespace cuemu {

enum class Order { kAscending, kDescending, kRandom };

// Neighbouring numbers give unrelated ones (the last steps of splitmix64).
CUEMU_UNSEEN inline uint64_t scramble(uint64_t number) {
  number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9u;
  number = (number ^ number >> 27) * 0x94d049bb133111ebu;
  return number ^ number >> 31;
}

struct Settings {
  Order order = Order::kAscending;
  uint64_t random = 0;
  int fuzz = 0;

  Settings() {
    if (const char* name = std::getenv("CUEMU_ORDER")) set_order(name);
    if (const char* ulp = std::getenv("CUEMU_FUZZ")) fuzz = std::stoi(ulp);
  }

  void set_order(const std::string& name) {
    const std::string random_prefix = "random:";
    if (name == "ascending") {
      order = Order::kAscending;
    } else if (name == "descending") {
      order = Order::kDescending;
    } else if (name.rfind(random_prefix, 0) == 0) {
      random = scramble(std::stoull(name.substr(random_prefix.size())));
      order = Order::kRandom;
    } else {
      throw std::invalid_argument("cuemu: no such order: " + name);
    }
  }

  CUEMU_UNSEEN uint64_t random_below(uint64_t end) {
    random += 0x9e3779b97f4a7c15u;
    return scramble(random) % end;
  }
};

// Read from the environment when first asked for, so that a wrong name there is an exception that can be caught.
CUEMU_UNSEEN inline Settings& settings() {
  static Settings instance;
  return instance;
}

// "ascending", "descending" or "random:<seed>": the order in which blocks run and a block's threads continue.
inline void set_order(const std::string& name) { settings().set_order(name); }

// The most units in the last place by which approximate functions are made wrong.
inline void set_fuzz(int ulp) { settings().fuzz = ulp; }

}  // namespace cuemu
