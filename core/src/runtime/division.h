// Whether the threads of a pool are of different speed, so that the parts of a region should be divided.
#pragma once

#include <algorithm>

namespace ortrain {

// Parts of equal size end at the same time if all threads are equally fast. On processors with cores of
// different speed, the fast threads would wait for the slow ones in every region. Parts are then divided into
// pieces, and a thread that has done its own part does pieces of others. Pieces cost time (operands are
// packed again for each), so parts are whole as long as threads hardly wait.
//
// What is averaged are shares of single regions, not times: a thread that loses its processor to another
// program makes one region wait for milliseconds, and pieces would not prevent that.
class Division {
 public:
  // Of a part. With an emulated slow thread (Zen 3), train steps take 0.66 to 0.96 of the time with 8 pieces
  // and 0.70 to 0.94 with 4. With equally fast threads, bert-mini takes 1.14 and 1.05.
  static constexpr int kPieces = 8;

  // In how many pieces the next region's parts are divided, if more than `most` are not worth it.
  int pieces(int most) const { return divided_ ? std::clamp(most, 1, kPieces) : 1; }

  // After a region of whole parts: the share of the threads' time in which they had ended before the others.
  void note_waiting(double share) {
    if (note(share) > kUneven) become(true, kUneven);
  }

  // After a region with divided parts: the share of the pieces that a thread took from another one's part.
  void note_taken(double share) {
    if (note(share) < kEven) become(false, 0);
  }

 private:
  // If one of two threads is 1.5 times as fast as the other, a sixth of their time is waiting. Once the parts
  // are divided, the fast thread takes one or two of the 16 pieces from the other.
  static constexpr double kUneven = 1.0 / 6, kEven = 1.0 / 16;
  // The average covers about 32 regions, a fraction of a step of most models.
  static constexpr double kWeight = 1.0 / 32;

  double note(double share) { return average_ += kWeight * (share - average_); }
  void become(bool divided, double average) {
    divided_ = divided;
    average_ = average;
  }

  bool divided_ = false;
  double average_ = 0;
};

}  // namespace ortrain
