// Sequences never change, although those derived from each other share their elements.
#include "catch.h"
#include "runtime/error.h"
#include "runtime/value.h"

using namespace ortrain;

namespace {

Tensor number(float x) { return Tensor::scalar(x); }

std::vector<float> numbers(const Sequence& sequence) {
  std::vector<float> all;
  for (size_t i = 0; i < sequence.size(); ++i) all.push_back(*sequence.at(i).data<float>());
  return all;
}

}  // namespace

TEST_CASE("a sequence stays as it is when others are made of it") {
  const Sequence none(DType::kFloat);
  const Sequence one = none.inserted(0, number(1)), two = one.inserted(1, number(2));
  const Sequence other = one.inserted(1, number(3)), front = two.inserted(0, number(0));
  const Sequence less = two.erased(1), again = less.inserted(1, number(4)), rest = two.erased(0);
  CHECK(numbers(none).empty());
  CHECK(numbers(one) == std::vector<float>{1});
  CHECK(numbers(two) == std::vector<float>{1, 2});
  CHECK(numbers(other) == std::vector<float>{1, 3});
  CHECK(numbers(front) == std::vector<float>{0, 1, 2});
  CHECK(numbers(less) == std::vector<float>{1});
  CHECK(numbers(again) == std::vector<float>{1, 4});
  CHECK(numbers(rest) == std::vector<float>{2});
}

TEST_CASE("elements are shared, and copied where that is asked for") {
  const Sequence one(DType::kFloat, {number(1)}), two = one.inserted(1, number(2));
  CHECK(one.at(0).raw() == two.at(0).raw());
  CHECK(one.detached().at(0).raw() == one.at(0).raw());
  CHECK(one.clone().at(0).raw() != one.at(0).raw());
  CHECK(numbers(two.clone()) == std::vector<float>{1, 2});
  CHECK(numbers(one.detached().inserted(1, number(5))) == std::vector<float>{1, 5});
}

TEST_CASE("elements of another type are refused") {
  const Sequence one(DType::kFloat, {number(1)});
  CHECK_THROWS_AS(one.inserted(1, Tensor::scalar(int64_t{2})), Error);
  CHECK_THROWS_AS(Sequence(DType::kInt64, {number(1)}), Error);
}

TEST_CASE("values are described in words") {
  CHECK(describe(ValueRef()) == "nothing");
  CHECK(describe(Tensor(DType::kFloat, {2, 3})) == "float32[2, 3]");
  CHECK(describe(Sequence(DType::kFloat, {number(1)})) == "a sequence of 1 float32 tensors");
}
