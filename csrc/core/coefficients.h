// Made by fit_polynomials.py: do not edit. Lowest order first.
#pragma once

#include "lane.h"

namespace hetnet {

template <class Scalar>
struct Coefficients;

template <>
struct Coefficients<float> {
  static HETNET_INLINE constexpr Constants<float, 5> sinpi() {
    return {{
        3.14159264f,
        -5.167710077f,
        2.550077387f,
        -5.982904113e-1f,
        7.765591228e-2f,
    }};
  }
  static HETNET_INLINE constexpr Constants<float, 5> cospi() {
    return {{
        9.999999991e-1f,
        -9.34802025e-1f,
        3.194976993e-1f,
        -5.718627209e-2f,
        6.041776533e-3f,
    }};
  }
  static HETNET_INLINE constexpr Constants<float, 5> exp() {
    return {{
        5.000000002e-1f,
        1.666657648e-1f,
        4.166653841e-2f,
        8.363264049e-3f,
        1.392801248e-3f,
    }};
  }
  static HETNET_INLINE constexpr Constants<float, 8> log() {
    return {{
        3.333333073e-1f,
        -2.500030642e-1f,
        2.000104509e-1f,
        -1.664128146e-1f,
        1.421449592e-1f,
        -1.299818376e-1f,
        1.262231985e-1f,
        -7.902743772e-2f,
    }};
  }
};

template <>
struct Coefficients<double> {
  static HETNET_INLINE constexpr Constants<double, 9> sinpi() {
    return {{
        3.14159265358979324,
        -5.16771278004996961,
        2.55016403987730047,
        -5.99264529318944681e-1,
        8.2145886573102895e-2,
        -7.3704305059169434e-3,
        4.6629981618983938e-4,
        -2.19034970746260172e-5,
        7.69782676822419065e-7,
    }};
  }
  static HETNET_INLINE constexpr Constants<double, 9> cospi() {
    return {{
        1.0,
        -9.34802200544679293e-1,
        3.1950332423804922e-1,
        -5.72494719023132438e-2,
        6.3327427478622031e-3,
        -4.75920375393584914e-4,
        2.58926219438422321e-5,
        -1.06668509704973265e-6,
        3.34788669303843062e-8,
    }};
  }
  static HETNET_INLINE constexpr Constants<double, 11> exp() {
    return {{
        5.0e-1,
        1.66666666666666711e-1,
        4.16666666666666736e-2,
        8.33333333332605347e-3,
        1.38888888888807579e-3,
        1.98412698751056597e-4,
        2.48015873335395013e-5,
        2.75572550392369869e-6,
        2.75572650736583093e-7,
        2.51053670012289515e-8,
        2.0917860371617981e-9,
    }};
  }
  static HETNET_INLINE constexpr Constants<double, 8> log() {
    return {{
        6.66666666666666665e-1,
        4.00000000000008832e-1,
        2.8571428570799785e-1,
        2.22222223925810451e-1,
        1.81817955475211362e-1,
        1.53862447376216666e-1,
        1.32686383692668239e-1,
        1.30880348509275538e-1,
    }};
  }
};

}  // namespace hetnet
