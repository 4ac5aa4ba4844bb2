// When the parts of a region are divided: threads of different speed, and what looks like it for a moment.
#include "catch.h"
#include "runtime/division.h"

using namespace ortrain;

namespace {

Division of_uneven_threads() {
  Division division;
  for (int i = 0; i < 100; ++i) division.note_waiting(0.25);
  return division;
}

}  // namespace

TEST_CASE("parts are whole as long as threads end at about the same time") {
  Division division;
  CHECK(division.pieces(100) == 1);
  for (int i = 0; i < 1000; ++i) division.note_waiting(0.1);
  CHECK(division.pieces(100) == 1);
}

TEST_CASE("parts are whole if single regions wait for a thread that lost its processor") {
  Division division;
  for (int i = 0; i < 1000; ++i) division.note_waiting(i % 10 == 0 ? 0.5 : 0.05);
  CHECK(division.pieces(100) == 1);
}

TEST_CASE("parts are divided if one of two threads takes twice as long") {
  const Division division = of_uneven_threads();
  CHECK(division.pieces(100) == Division::kPieces);
  CHECK(division.pieces(3) == 3);
  CHECK(division.pieces(1) == 1);
}

TEST_CASE("parts stay divided while a thread takes pieces of others, and no longer") {
  Division division = of_uneven_threads();
  for (int i = 0; i < 1000; ++i) division.note_taken(0.125);
  CHECK(division.pieces(100) == Division::kPieces);
  for (int i = 0; i < 100; ++i) division.note_taken(0);
  CHECK(division.pieces(100) == 1);
  for (int i = 0; i < 3; ++i) division.note_waiting(0.5);
  CHECK(division.pieces(100) == 1);
}
