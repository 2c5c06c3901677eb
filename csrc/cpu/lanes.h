// What the vector lanes stand for: samples of one row, rows at one sample, or classes of one row.
// All give the same normals to the same (row, sample, dimension).
//
// A group is the rows that are worked on together. A draw is some of its samples: `slices`
// slices of vectors [slice][vector], where `vectors(classes)` hold a number for each class.
// With classes along the lanes a slice is one sample, else the one slice is the whole draw.
//
// A `V` in a reduction is one of three kinds of numbers: one a class, of which there are
// vectors(classes); one a sample, the same on all lanes where classes lie along them; and a part of
// a sum over classes, which sum_over_classes completes.
//
// `Total` is what a sum over all samples becomes, one number a row: a double where a group is
// one row, and a vector where each lane is a row.
#pragma once

#include "class_lanes.h"
#include "row_lanes.h"
#include "sample_lanes.h"
