// Binds the numerics core to NumPy, for one lane type of one instruction set.
//
// Compiled once for each instruction set, with HETNET_CPU_AVX512, HETNET_CPU_AVX2 or
// neither, and the compiler flags that go with it.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#define HETNET_CPU_NAMESPACE test
#include "cpu/noise.h"

namespace py = pybind11;

namespace {

using namespace hetnet;
using namespace hetnet::test;

template <class T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

// Applies f to an array, a vector of lanes at a time; the last vector is filled up with ones.
template <class V, class F>
Array<typename lane<V>::Scalar> map_lanes(const Array<typename lane<V>::Scalar>& x, F f) {
  using S = typename lane<V>::Scalar;
  constexpr py::ssize_t kWidth = sizeof(V) / sizeof(S);
  Array<S> out(x.size());
  for (py::ssize_t i = 0; i < x.size(); i += kWidth) {
    const py::ssize_t count = std::min(kWidth, x.size() - i);
    S lanes[kWidth];
    for (py::ssize_t j = 0; j < kWidth; ++j) lanes[j] = j < count ? x.data()[i + j] : S(1);
    V v;
    std::memcpy(&v, lanes, sizeof(v));
    v = f(v);
    std::memcpy(lanes, &v, sizeof(v));
    std::memcpy(out.mutable_data() + i, lanes, static_cast<std::size_t>(count) * sizeof(S));
  }
  return out;
}

template <class V>
void bind_elementary(py::module_& m) {
  using A = Array<typename lane<V>::Scalar>;
  m.def("exp", [](const A& x) { return map_lanes<V>(x, [](V v) { return hetnet::exp(v); }); });
  m.def("log", [](const A& x) { return map_lanes<V>(x, [](V v) { return hetnet::log(v); }); });
  m.def("log_or_limit", [](const A& x) { return map_lanes<V>(x, [](V v) { return log_or_limit(v); }); });
  m.def("sinpi", [](const A& x) { return map_lanes<V>(x, [](V v) { return sinpi(v); }); });
  m.def("cospi", [](const A& x) { return map_lanes<V>(x, [](V v) { return cospi(v); }); });
}

// Normals of words, for a lane type of any width.
template <class V>
void bind_normal_pair(py::module_& m) {
  using L = lane<V>;
  using S = typename L::Scalar;
  constexpr py::ssize_t kWidth = sizeof(V) / sizeof(S);
  m.def("normal_pairs", [](const Array<uint32_t>& radius, const Array<uint32_t>& angle) {
    Array<S> out({radius.size(), py::ssize_t{2}});
    for (py::ssize_t i = 0; i < radius.size(); i += kWidth) {
      typename L::UInt r{}, a{};
      using Lane = std::conditional_t<sizeof(S) == 4, uint32_t, uint64_t>;
      Lane rs[kWidth] = {}, as[kWidth] = {};
      for (py::ssize_t j = 0; j < kWidth && i + j < radius.size(); ++j) {
        rs[j] = radius.data()[i + j];
        as[j] = angle.data()[i + j];
      }
      std::memcpy(&r, rs, sizeof(r));
      std::memcpy(&a, as, sizeof(a));
      V first, second;
      normal_pair<V>(r, a, first, second);
      S f[kWidth], s[kWidth];
      std::memcpy(f, &first, sizeof(first));
      std::memcpy(s, &second, sizeof(second));
      for (py::ssize_t j = 0; j < kWidth && i + j < radius.size(); ++j) {
        out.mutable_data()[2 * (i + j)] = f[j];
        out.mutable_data()[2 * (i + j) + 1] = s[j];
      }
    }
    return out;
  });
}

template <class V>
void bind_lane(py::module_& m, const char* name) {
  py::module_ sub = m.def_submodule(name);
  bind_elementary<V>(sub);
  bind_normal_pair<V>(sub);
}

Array<uint32_t> philox(const Array<uint32_t>& counter, const Array<uint32_t>& key) {
  const uint32_t* c = counter.data();
  const uint64_t seed = key.data()[0] | static_cast<uint64_t>(key.data()[1]) << 32;
  const PhiloxBlock<uint32_t> words = philox4x32_10(c[0], c[1], c[2], c[3], PhiloxKeys(seed));
  Array<uint32_t> out(4);
  std::memcpy(out.mutable_data(), &words, sizeof(words));
  return out;
}

}  // namespace

PYBIND11_MODULE(HETNET_TEST_MODULE, m) {
  bind_lane<FloatVec>(m, "float32");
  bind_lane<DoubleVec>(m, "float64");
  bind_lane<float>(m, "scalar_float32");
  bind_lane<double>(m, "scalar_float64");
  m.def("philox", &philox);
}
