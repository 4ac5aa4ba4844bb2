#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "checkpoint_generated.h"
#include "full_disk.h"
#include "runtime/file.h"
#include "state/checkpoint_io.h"
#include "support.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

using namespace ortrain;
using namespace ortrain::test;

namespace {

bool same(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

void check_same(const CheckpointState& a, const CheckpointState& b, bool with_optimizer = true) {
  REQUIRE(a.parameters().size() == b.parameters().size());
  for (size_t i = 0; i < a.parameters().size(); ++i) {
    const Parameter &p = a.parameters()[i], &q = b.parameters()[i];
    INFO(p.name);
    CHECK(p.name == q.name);
    CHECK(p.trainable == q.trainable);
    CHECK(same(p.data, q.data));
    if (!with_optimizer) continue;
    REQUIRE(p.moments.size() == q.moments.size());
    for (size_t m = 0; m < p.moments.size(); ++m) CHECK(same(p.moments[m], q.moments[m]));
  }
  CHECK(a.properties() == b.properties());
  if (!with_optimizer) return;
  CHECK(a.has_optimizer_state() == b.has_optimizer_state());
  CHECK(a.optimizer().step == b.optimizer().step);
  CHECK(a.optimizer().initial_learning_rate == b.optimizer().initial_learning_rate);
}

// Two trainable parameters of odd sizes, a frozen one between them, two momentums.
CheckpointState sample(float offset = 0) {
  CheckpointState state;
  state.add_parameter("fc.weight", true, Tensor::of<float>({1 + offset, 2, 3, 4, 5, 6}, {2, 3}));
  state.add_parameter("bn.mean", false, Tensor::of<float>({7 + offset, 8}));
  state.add_parameter("fc.bias", true, Tensor::of<float>({9 + offset, 10, 11}));
  state.make_moments(2);
  for (const Parameter& p : state.parameters())
    for (size_t m = 0; m < p.moments.size(); ++m)
      for (float& v : p.moments[m].elements<float>()) v = 100.0f * static_cast<float>(m + 1) + offset;
  state.optimizer().step = 12;
  state.optimizer().initial_learning_rate = 0.25f;
  state.properties() = {{"epoch", int64_t{3}},
                        {"loss", 0.5f},
                        {"note", std::string("gut \xC3\xBC"
                                             "bersetzt")}};
  return state;
}

std::string bytes_of(const CheckpointState& state, bool with_optimizer = true) {
  Folder folder;
  state.save(folder / "c", with_optimizer);
  return content_of(folder / "c");
}

std::shared_ptr<CheckpointState> load(const std::string& bytes) {
  return CheckpointState::load(bytes.data(), bytes.size());
}

void refuse(ErrorCode code, const std::vector<std::string>& parts, const std::string& bytes) {
  check_error(code, parts, [&] { load(bytes); });
}

double number_after(const std::string& text, const std::string& mark, size_t from) {
  return std::stod(text.substr(text.find(mark, from) + mark.size()));
}

ino_t inode(const std::filesystem::path& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_ino;
}

// A checkpoint as another writer would create it, so that single fields can be wrong.
struct Draft {
  struct Entry {
    std::string name;
    std::vector<int64_t> dims;
    size_t bytes;
    int type = 1;
    int64_t external = -1;
  };
  int version = 2;
  std::vector<Entry> trainable{{"w", {2}, 8}}, frozen{{"f", {1}, 4}};
  bool nominal = false, external = false, module = true;
  std::vector<std::string> groups;
  int64_t step = 5;
  float learning_rate = 0.1f;
  std::vector<std::pair<std::string, std::vector<Entry>>> states{{"w", {{"momentum0", {2}, 8}}}};
  // Of groups of parameters, what was set for them.
  std::vector<std::pair<std::string, std::vector<std::string>>> settings;
  std::vector<std::string> property_names;

  std::string bytes() const {
    flatbuffers::FlatBufferBuilder b;
    const auto tensor = [&](const Entry& e) {
      const auto name = b.CreateString(e.name);
      const auto dims = b.CreateVector(e.dims);
      const auto raw = b.CreateVector(std::vector<uint8_t>(e.bytes, 0x3F));
      return fbs::CreateTensor(b, name, 0, dims, e.type, raw, 0, e.external);
    };
    const auto tensors = [&](const std::vector<Entry>& entries) {
      std::vector<flatbuffers::Offset<fbs::Tensor>> out;
      for (const Entry& e : entries) out.push_back(tensor(e));
      return b.CreateVector(out);
    };
    flatbuffers::Offset<fbs::ModuleState> module_state = 0;
    if (module) {
      const auto t = tensors(trainable), f = tensors(frozen);
      module_state = fbs::CreateModuleState(b, t, f, nominal, external);
    }
    std::vector<flatbuffers::Offset<fbs::OptimizerGroup>> group_tables;
    for (const std::string& group : groups) {
      std::vector<flatbuffers::Offset<fbs::ParameterOptimizerState>> state_tables;
      for (const auto& [owner, momentums] : states) {
        const auto name = b.CreateString(owner);
        state_tables.push_back(fbs::CreateParameterOptimizerState(b, name, tensors(momentums)));
      }
      std::vector<flatbuffers::Offset<fbs::ParameterGroupSettings>> settings_tables;
      for (const auto& [owner, keys] : settings) {
        std::vector<flatbuffers::Offset<fbs::FloatProperty>> values;
        for (const std::string& key : keys)
          values.push_back(fbs::CreateFloatProperty(b, b.CreateString(key), 0.5f));
        const auto name = b.CreateString(owner);
        settings_tables.push_back(fbs::CreateParameterGroupSettings(b, name, b.CreateVector(values)));
      }
      const auto name = b.CreateString(group);
      const auto states_vector = b.CreateVector(state_tables);
      group_tables.push_back(fbs::CreateOptimizerGroup(b, name, step, learning_rate, states_vector,
                                                       b.CreateVector(settings_tables)));
    }
    std::vector<flatbuffers::Offset<fbs::IntProperty>> ints;
    for (const std::string& p : property_names)
      ints.push_back(fbs::CreateIntProperty(b, b.CreateString(p), 1));
    const auto bag = fbs::CreatePropertyBag(b, b.CreateVector(ints));
    const auto group_vector = b.CreateVector(group_tables);
    fbs::FinishCheckpointBuffer(b, fbs::CreateCheckpoint(b, version, module_state, group_vector, bag));
    return {reinterpret_cast<const char*>(b.GetBufferPointer()), b.GetSize()};
  }
};

}  // namespace

TEST_CASE("The checkpoints of onnxruntime-training load with the recorded values") {
  for (const std::string& name : kCases) {
    INFO(name);
    const auto before = CheckpointState::load(kFixtures / name / "checkpoint");
    CHECK_FALSE(before->has_optimizer_state());
    const auto after = CheckpointState::load(kFixtures / name / "checkpoint_after");
    CHECK(after->has_optimizer_state());
    CHECK(after->parameters().size() == before->parameters().size());
    CHECK(after->parameters_size(false) == before->parameters_size(false));

    // In the record, each parameter's name is followed by the sum and the norm of its values.
    const std::string expected = content_of(kFixtures / name / "expected.json");
    for (const Parameter& parameter : after->parameters()) {
      double sum = 0, squares = 0;
      for (const double v : parameter.data.to_double()) {
        sum += v;
        squares += v * v;
      }
      INFO(parameter.name);
      const size_t entry = expected.find("\"" + parameter.name + "\": {");
      REQUIRE(entry != std::string::npos);
      CHECK(sum == Catch::Approx(number_after(expected, "\"sum\":", entry)).epsilon(1e-6).margin(1e-5));
      CHECK(std::sqrt(squares) == Catch::Approx(number_after(expected, "\"l2\":", entry)).epsilon(1e-6));
    }
    // As many steps as there are recorded losses.
    const auto losses = expected.begin() + static_cast<std::ptrdiff_t>(expected.find("\"train_losses\": ["));
    CHECK(after->optimizer().step == std::count(losses, std::find(losses, expected.end(), ']'), ',') + 1);

    for (const auto& state : {before, after}) {
      const std::string written = bytes_of(*state);
      check_same(*state, *load(written));
      CHECK(written == bytes_of(*load(written)));
    }
  }
}

TEST_CASE("A saved state is the same when it is loaded again, and the bytes too") {
  const CheckpointState state = sample();
  const std::string bytes = bytes_of(state);
  const auto again = load(bytes);
  check_same(state, *again);
  CHECK(bytes == bytes_of(sample()));
  CHECK(bytes == bytes_of(*again));
  CHECK(std::get<std::string>(again->property("note")) ==
        "gut \xC3\xBC"
        "bersetzt");

  const auto without = load(bytes_of(state, false));
  check_same(state, *without, false);
  CHECK_FALSE(without->has_optimizer_state());

  // Memory at an odd address.
  std::string shifted = "x" + bytes;
  check_same(state, *CheckpointState::load(shifted.data() + 1, bytes.size()));
}

TEST_CASE("Types other than float and empty tensors are kept") {
  CheckpointState state;
  state.add_parameter("d", true, Tensor::of<double>({0.1, 0.2}));
  state.add_parameter("count", false, Tensor::scalar<int64_t>(5));
  state.add_parameter("none", false, Tensor(DType::kFloat, {0, 4}));
  check_same(state, *load(bytes_of(state)));
  check_same(CheckpointState(), *load(bytes_of(CheckpointState())));
}

TEST_CASE("Parameters lie in aligned arenas of one layout with zeros between them") {
  CheckpointState state = sample();
  const Tensor before = state.parameter("fc.bias").data;
  state.make_arenas();
  state.make_moments(2);
  CHECK(before.to_double() == std::vector<double>{9, 10, 11});  // a view from before stays readable
  REQUIRE(state.moment_arenas().size() == 2);
  const Tensor& data = state.data_arena();
  CHECK(data.bytes() == 128);  // two trainable parameters, each rounded up to 64 bytes
  CHECK(state.gradient_arena().bytes() == data.bytes());
  size_t used = 0;
  std::vector<bool> covered(data.bytes(), false);
  for (const Parameter& p : state.parameters()) {
    CHECK(reinterpret_cast<uintptr_t>(p.data.raw()) % 64 == 0);
    if (!p.trainable) {
      CHECK((p.data.raw() < data.raw() || p.data.raw() >= data.raw() + data.bytes()));
      CHECK_FALSE(p.gradient.defined());
      continue;
    }
    const auto offset = p.data.raw() - data.raw();
    CHECK(p.gradient.raw() - state.gradient_arena().raw() == offset);
    CHECK(p.gradient.shape() == p.data.shape());
    for (size_t m = 0; m < 2; ++m) CHECK(p.moments[m].raw() - state.moment_arenas()[m].raw() == offset);
    for (size_t i = 0; i < p.data.bytes(); ++i) covered[static_cast<size_t>(offset) + i] = true;
    used += p.data.bytes();
  }
  CHECK(used == 9 * sizeof(float));
  for (size_t i = 0; i < covered.size(); ++i)
    if (!covered[i])
      CHECK((data.raw()[i] == std::byte{0} && state.moment_arenas()[1].raw()[i] == std::byte{0}));
  for (const float v : state.parameter("fc.weight").gradient.elements<float>()) CHECK(v == 0);
  CHECK(state.parameter("fc.weight").moments[1].to_double() == std::vector<double>(6, 200));

  // Doing it again changes nothing.
  const std::byte* gradients = state.gradient_arena().raw();
  state.make_arenas();
  CHECK(state.gradient_arena().raw() == gradients);
  CHECK(state.data_arena().raw() == data.raw());

  check_error(ErrorCode::kInvalidArgument, {"2 moments", "keeps 1"}, [&] { state.make_moments(1); });
  check_error(ErrorCode::kInvalidArgument, {"\"late\"", "session"},
              [&] { state.add_parameter("late", true, Tensor::scalar(1.0f)); });
}

TEST_CASE("A new optimizer starts with moments of zero") {
  CheckpointState state;
  state.add_parameter("w", true, Tensor::of<float>({1, 2}));
  CHECK_FALSE(state.has_optimizer_state());
  state.make_moments(1);
  CHECK(state.has_optimizer_state());
  CHECK(state.parameter("w").moments[0].to_double() == std::vector<double>{0, 0});
}

TEST_CASE("Parameters are packed into a buffer and taken from it without gaps") {
  CheckpointState state = sample();
  CHECK(state.parameters_size(true) == 9);
  CHECK(state.parameters_size(false) == 11);
  Tensor all(DType::kFloat, {11}), trainable(DType::kFloat, {3, 3});
  state.copy_to_buffer(all, false);
  state.copy_to_buffer(trainable, true);
  CHECK(all.to_double() == std::vector<double>{1, 2, 3, 4, 5, 6, 9, 10, 11, 7, 8});
  CHECK(trainable.to_double() == std::vector<double>{1, 2, 3, 4, 5, 6, 9, 10, 11});

  std::vector<float> fresh(9);
  for (size_t i = 0; i < 9; ++i) fresh[i] = -static_cast<float>(i);
  state.copy_from_buffer(Tensor::of(fresh), true);
  CHECK(state.parameter("fc.weight").data.to_double() == std::vector<double>{0, -1, -2, -3, -4, -5});
  CHECK(state.parameter("fc.bias").data.to_double() == std::vector<double>{-6, -7, -8});
  CHECK(state.parameter("bn.mean").data.to_double() == std::vector<double>{7, 8});

  SECTION("in the order that a training session sets") {
    state.set_buffer_order({"fc.bias", "bn.mean", "fc.weight"});
    state.copy_to_buffer(all, false);
    CHECK(all.to_double() == std::vector<double>{-6, -7, -8, 7, 8, 0, -1, -2, -3, -4, -5});
    state.copy_to_buffer(trainable, true);
    CHECK(trainable.to_double() == std::vector<double>{-6, -7, -8, 0, -1, -2, -3, -4, -5});
    check_error(ErrorCode::kInvalidArgument, {"\"fc.bias\"", "twice"}, [&] {
      state.set_buffer_order({"fc.bias", "fc.bias"});
    });
    check_error(ErrorCode::kInvalidArgument, {"leaves out \"fc.weight\""}, [&] {
      state.set_buffer_order({"fc.bias", "bn.mean"});
    });
  }
  SECTION("a buffer of another size or type is refused") {
    check_error(ErrorCode::kInvalidArgument, {"11 elements of type float32", "all parameters", "found 9"},
                [&] { state.copy_to_buffer(trainable, false); });
    check_error(ErrorCode::kInvalidArgument, {"9 elements", "trainable parameters", "found 11"},
                [&] { state.copy_from_buffer(all, true); });
    check_error(ErrorCode::kInvalidArgument, {"float32", "float64"},
                [&] { state.copy_from_buffer(Tensor(DType::kDouble, {11}), false); });
  }
  SECTION("parameters of different types do not go into one buffer") {
    state = CheckpointState();
    state.add_parameter("w", true, Tensor::scalar(1.0f));
    state.add_parameter("n", false, Tensor::scalar<int64_t>(1));
    Tensor one(DType::kFloat, {1}), two(DType::kFloat, {2});
    state.copy_to_buffer(one, true);
    check_error(ErrorCode::kInvalidArgument, {"\"w\" is float32", "\"n\" is int64"},
                [&] { state.copy_to_buffer(two, false); });
    CHECK(state.parameters_type(true, "copying") == DType::kFloat);
    check_error(ErrorCode::kInvalidArgument, {"copying", "\"w\" is float32", "\"n\" is int64"},
                [&] { state.parameters_type(false, "copying"); });
  }
  SECTION("a buffer has the type of its parameters") {
    state = CheckpointState();
    CHECK(state.parameters_type(false, "copying") == DType::kFloat);
    state.add_parameter("w", true, Tensor(DType::kFloat16, {2}));
    CHECK(state.parameters_type(false, "copying") == DType::kFloat16);
  }
}

TEST_CASE("Parameters that lie end to end are copied as well") {
  CheckpointState state;
  std::vector<float> values(48);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const Tensor whole = Tensor::of(values);
  for (int i = 0; i < 3; ++i)
    state.add_parameter("p" + std::to_string(i), true,
                        Tensor(DType::kFloat, {4, 4}, whole.data<float>() + 16 * i));
  state.make_arenas();
  Tensor buffer(DType::kFloat, {48});
  state.copy_to_buffer(buffer, true);
  CHECK(same(buffer, whole));
}

TEST_CASE("Unknown parameters, wrong values and unknown properties are named") {
  CheckpointState state = sample();
  check_error(ErrorCode::kInvalidArgument, {"\"fc.wieght\"", "did you mean \"fc.weight\""},
              [&] { state.parameter("fc.wieght"); });
  check_error(ErrorCode::kInvalidArgument, {"\"zzz\"", "3"}, [&] { state.parameter("zzz"); });
  check_error(ErrorCode::kInvalidArgument, {"\"fc.bias\"", "float32[3]", "float32[2]"}, [&] {
    state.update_parameter("fc.bias", Tensor::of<float>({1, 2}));
  });
  check_error(ErrorCode::kInvalidArgument, {"\"fc.bias\"", "float64[3]"}, [&] {
    state.update_parameter("fc.bias", Tensor::of<double>({1, 2, 3}));
  });
  state.update_parameter("fc.bias", Tensor::of<float>({4, 5, 6}));
  CHECK(state.parameter("fc.bias").data.to_double() == std::vector<double>{4, 5, 6});
  check_error(ErrorCode::kInvalidArgument, {"\"fc.bias\"", "already has one with that name"},
              [&] { state.add_parameter("fc.bias", true, Tensor::scalar(1.0f)); });
  check_error(ErrorCode::kInvalidArgument, {"\"epoc\"", "\"epoch\"", "\"loss\"", "\"note\""},
              [&] { state.property("epoc"); });
  check_error(ErrorCode::kInvalidArgument, {"none at all"}, [&] { CheckpointState().property("epoch"); });
}

TEST_CASE("A nominal checkpoint has no values until a buffer gives them") {
  CheckpointState made = sample();
  Tensor all(DType::kFloat, {11}), part(DType::kFloat, {9});
  made.copy_to_buffer(all, false);
  made.set_nominal(true);
  const std::string bytes = bytes_of(made);
  CHECK(bytes.size() < bytes_of(sample()).size());
  const auto state = load(bytes);
  CHECK(state->is_nominal());
  CHECK_FALSE(state->has_optimizer_state());
  CHECK(state->parameter("fc.weight").data.shape() == Shape{2, 3});
  CHECK(state->parameters_size(false) == 11);
  check_error(ErrorCode::kInvalidArgument, {"nominal", "no values"},
              [&] { state->copy_to_buffer(all, false); });
  check_error(ErrorCode::kInvalidArgument, {"nominal", "\"fc.bias\""}, [&] {
    state->update_parameter("fc.bias", Tensor::of<float>({4, 5, 6}));
  });
  check_error(ErrorCode::kInvalidArgument, {"nominal", "\"bn.mean\" is frozen"},
              [&] { state->copy_from_buffer(part, true); });
  check_error(ErrorCode::kInvalidArgument, {"11 elements", "found 9"},
              [&] { state->copy_from_buffer(part, false); });
  CHECK(state->is_nominal());
  state->copy_from_buffer(all, false);
  CHECK_FALSE(state->is_nominal());
  check_same(sample(), *state, false);

  SECTION("of which onnxruntime-training does not write the shapes") {
    Draft draft;
    draft.nominal = true;
    draft.trainable = {{"w", {}, 0}, {"v", {}, 0}};
    draft.frozen = {};
    const auto foreign = load(draft.bytes());
    CHECK(foreign->is_nominal());
    check_error(ErrorCode::kInvalidArgument, {"nominal", "\"w\"", "session"},
                [&] { foreign->copy_from_buffer(Tensor(DType::kFloat, {0}), false); });
    foreign->set_nominal_shape("w", {2});
    foreign->set_nominal_shape("v", {});
    check_error(ErrorCode::kInvalidArgument, {"\"w\"", "[2]", "[3]"},
                [&] { foreign->set_nominal_shape("w", {3}); });
    foreign->make_arenas();
    foreign->copy_from_buffer(Tensor::of<float>({1, 2, 3}), false);
    CHECK(foreign->parameter("w").data.to_double() == std::vector<double>{1, 2});
    CHECK(foreign->parameter("v").data.to_double() == std::vector<double>{3});
    CHECK(foreign->data_arena().raw() == foreign->parameter("w").data.raw());
  }
}

TEST_CASE("A state that is too large for one file lies in two") {
  Folder folder;
  const CheckpointState state = sample();
  CheckpointIo::write(state, folder / "c", true, 100);
  CHECK(folder.names() == std::vector<std::string>{"c", "c.data"});
  check_same(state, *CheckpointState::load(folder / "c"));
  const std::string first = content_of(folder / "c"), first_data = content_of(folder / "c.data");
  CheckpointIo::write(*CheckpointState::load(folder / "c"), folder / "d", true, 100);
  CHECK(content_of(folder / "d") == first);
  CHECK(content_of(folder / "d.data") == first_data);

  // Another state saved over it: nothing is left of the old one.
  CheckpointIo::write(sample(1000), folder / "c", true, 100);
  CHECK(folder.names() == std::vector<std::string>{"c", "c.data", "d", "d.data"});
  check_same(sample(1000), *CheckpointState::load(folder / "c"));
  const std::string second_data = content_of(folder / "c.data");

  SECTION("a crash between the two files leaves the old state") {
    // The new data is in place, the checkpoint is not yet.
    put(folder / "c", first);
    put(folder / "c.data", second_data);
    put(folder / "c.data.old", first_data);
    check_same(state, *CheckpointState::load(folder / "c"));
    // Saving continues from there, and would leave the old state again if it crashed at the same point.
    {
      FullDisk full(50);
      CHECK_THROWS_AS(CheckpointIo::write(sample(5), folder / "c", true, 100), Error);
    }
    check_same(state, *CheckpointState::load(folder / "c"));
    CheckpointIo::write(sample(5), folder / "c", true, 100);
    check_same(sample(5), *CheckpointState::load(folder / "c"));
    CHECK(folder.names() == std::vector<std::string>{"c", "c.data", "d", "d.data"});
  }
  SECTION("a crash after the two files leaves the new state") {
    put(folder / "c.data.old", first_data);
    check_same(sample(1000), *CheckpointState::load(folder / "c"));
  }
  SECTION("the data of another checkpoint are refused") {
    put(folder / "c.data", first_data);
    check_error(ErrorCode::kFail, {"c.data", "another checkpoint"},
                [&] { CheckpointState::load(folder / "c"); });
    std::filesystem::remove(folder / "c.data");
    check_error(ErrorCode::kNoSuchFile, {"c.data", "missing"}, [&] { CheckpointState::load(folder / "c"); });
    check_error(ErrorCode::kInvalidArgument, {"second file", "memory"}, [&] { load(first); });
  }
  SECTION("data that are cut off are refused") {
    put(folder / "c.data", second_data.substr(0, 100) + second_data.substr(second_data.size() - 32));
    check_error(ErrorCode::kFail, {"bytes at offset", "132 bytes"},
                [&] { CheckpointState::load(folder / "c"); });
  }
  SECTION("a state that fits into one file takes the second away") {
    CheckpointState::load(folder / "c")->save(folder / "c", true);
    CHECK(folder.names() == std::vector<std::string>{"c", "d", "d.data"});
    check_same(sample(1000), *CheckpointState::load(folder / "c"));
  }
  SECTION("a full disk leaves both as they were") {
    FullDisk full(60);
    check_error(ErrorCode::kFail, {"c.data", "File too large"},
                [&] { CheckpointIo::write(state, folder / "c", true, 100); });
    CHECK(folder.names() == std::vector<std::string>{"c", "c.data", "d", "d.data"});
    check_same(sample(1000), *CheckpointState::load(folder / "c"));
  }
  SECTION("damage of the tables ends in an error or a state") {
    const std::string whole = content_of(folder / "c");
    damage(whole, 1000, [&](const std::string& bytes) {
      put(folder / "c", bytes);
      CheckpointState::load(folder / "c");
    });
  }
}

TEST_CASE("A process that is killed while it saves leaves a whole state") {
  const size_t largest = GENERATE(size_t{100}, CheckpointIo::kLargestFile);  // two files, one file
  Folder folder;
  CheckpointIo::write(sample(0), folder / "c", true, largest);
  std::mt19937 random(7);
  std::set<double> seen;
  for (int round = 0; round < 40; ++round) {
    const ino_t before = inode(folder / "c");
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      for (int i = round;; ++i)
        CheckpointIo::write(sample(static_cast<float>(i % 2)), folder / "c", true, largest);
    }
    // The process is killed at an arbitrary moment of its second save or a later one.
    for (int waited = 0; inode(folder / "c") == before && waited < 20'000; ++waited) ::usleep(500);
    ::usleep(random() % 10000);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const auto state = CheckpointState::load(folder / "c");
    const double first = state->parameter("fc.weight").data.to_double()[0];
    seen.insert(first);
    check_same(sample(static_cast<float>(first - 1)), *state);
  }
  CHECK(seen == std::set<double>{1, 2});
}

TEST_CASE("The second file of onnxruntime-training bears no mark") {
  Folder folder;
  Draft draft;
  draft.external = true;
  draft.trainable = {{"w", {2}, 0, 1, 4}};
  draft.frozen = {{"f", {1}, 0, 1, 0}};
  put(folder / "c", draft.bytes());
  const float values[] = {7, 1, 2};
  put(folder / "c.data", std::string(reinterpret_cast<const char*>(values), sizeof values));
  const auto state = CheckpointState::load(folder / "c");
  CHECK(state->parameter("w").data.to_double() == std::vector<double>{1, 2});
  CHECK(state->parameter("f").data.to_double() == std::vector<double>{7});
  put(folder / "c.data", std::string(11, 'x'));
  check_error(ErrorCode::kFail, {"\"w\"", "8 bytes at offset 4", "11 bytes"},
              [&] { CheckpointState::load(folder / "c"); });
}

TEST_CASE("What does not fit together in a checkpoint is refused") {
  const auto with = [](const std::function<void(Draft&)>& change) {
    Draft draft;
    change(draft);
    return draft.bytes();
  };
  CHECK(load(Draft().bytes())->parameters().size() == 2);
  CHECK(load(with([](Draft& d) { d.groups = {"group0"}; }))->optimizer().step == 5);
  for (const int version : {0, 1, 3})
    refuse(ErrorCode::kFail,
           {"expected a checkpoint of version 2", "found version " + std::to_string(version)},
           with([&](Draft& d) { d.version = version; }));
  refuse(ErrorCode::kFail, {"module_state"}, with([](Draft& d) { d.module = false; }));
  refuse(ErrorCode::kFail, {"parameter \"w\"", "needs 8 bytes, found 7"},
         with([](Draft& d) { d.trainable[0].bytes = 7; }));
  refuse(ErrorCode::kFail, {"parameter \"w\"", "[-2]"}, with([](Draft& d) { d.trainable[0].dims = {-2}; }));
  refuse(ErrorCode::kFail, {"parameter \"w\"", "not a valid shape"}, with([](Draft& d) {
           d.trainable[0].dims = {int64_t{1} << 40, int64_t{1} << 40};
         }));
  refuse(ErrorCode::kNotImplemented, {"parameter \"w\"", "string"},
         with([](Draft& d) { d.trainable[0].type = 8; }));
  refuse(ErrorCode::kNotImplemented, {"parameter \"w\"", "99"},
         with([](Draft& d) { d.trainable[0].type = 99; }));
  refuse(ErrorCode::kFail, {"two parameters", "\"w\""}, with([](Draft& d) { d.frozen[0].name = "w"; }));
  refuse(ErrorCode::kFail, {"UTF-8"}, with([](Draft& d) { d.frozen[0].name = "\xFF"; }));
  refuse(ErrorCode::kFail, {"nominal", "8 bytes"}, with([](Draft& d) { d.nominal = true; }));
  refuse(ErrorCode::kFail, {"second file", "declares none"},
         with([](Draft& d) { d.trainable[0].external = 0; }));
  refuse(ErrorCode::kFail, {"two properties", "\"p\""}, with([](Draft& d) {
           d.property_names = {"p", "p"};
         }));
  const auto group = [&](const std::function<void(Draft&)>& change) {
    return with([&](Draft& d) {
      d.groups = {"group0"};
      change(d);
    });
  };
  refuse(ErrorCode::kNotImplemented, {"\"group0\"", "\"other\""},
         group([](Draft& d) { d.groups = {"other"}; }));
  refuse(ErrorCode::kNotImplemented, {"2 groups"}, group([](Draft& d) { d.groups = {"group0", "group1"}; }));
  refuse(ErrorCode::kFail, {"step", "-5"}, group([](Draft& d) { d.step = -5; }));
  refuse(ErrorCode::kFail, {"learning rate", "nan"}, group([](Draft& d) { d.learning_rate = NAN; }));
  refuse(ErrorCode::kFail, {"\"nobody\"", "not a trainable"},
         group([](Draft& d) { d.states[0].first = "nobody"; }));
  refuse(ErrorCode::kFail, {"\"f\"", "not a trainable"}, group([](Draft& d) { d.states[0].first = "f"; }));
  refuse(ErrorCode::kFail, {"2 parameters", "1 is trainable"},
         group([](Draft& d) { d.states.push_back(d.states[0]); }));
  refuse(ErrorCode::kFail, {"momentum \"momentum0\" of parameter \"w\"", "float32[2]", "float32[2, 1]"},
         group([](Draft& d) {
           d.states[0].second[0].dims = {2, 1};
         }));
  refuse(ErrorCode::kFail, {"\"m\"", "momentum0"}, group([](Draft& d) { d.states[0].second[0].name = "m"; }));
  using Settings = std::map<std::string, std::map<std::string, float>>;
  CHECK(load(group([](Draft& d) {
          d.settings = {{"a", {"beta", "alpha"}}, {"b", {}}};
        }))
            ->optimizer()
            .group_settings == Settings{{"a", {{"alpha", 0.5f}, {"beta", 0.5f}}}, {"b", {}}});
  refuse(ErrorCode::kFail, {"parameter group \"a\" twice"}, group([](Draft& d) {
           d.settings = {{"a", {}}, {"a", {"beta"}}};
         }));
  refuse(ErrorCode::kFail, {"\"beta\" of the parameter group \"a\" twice"}, group([](Draft& d) {
           d.settings = {{"a", {"beta", "beta"}}};
         }));
  refuse(ErrorCode::kFail, {"UTF-8"}, group([](Draft& d) { d.settings = {{"\xFF", {}}}; }));
  refuse(ErrorCode::kFail, {"expected one each"},
         group([](Draft& d) { d.states[0].second.push_back(d.states[0].second[0]); }));
}

TEST_CASE("Files that are not checkpoints are refused with what they are") {
  Folder folder;
  const auto refuse_file = [&](const std::string& content, const std::vector<std::string>& parts) {
    put(folder / "file", content);
    std::vector<std::string> all = parts;
    all.push_back((folder / "file").string());
    check_error(ErrorCode::kFail, all, [&] { CheckpointState::load(folder / "file"); });
  };
  refuse_file("", {"nothing"});
  refuse_file("short", {"5 bytes"});
  refuse_file("\x89PNG\r\n\x1a\n00000000", {"a PNG image"});
  refuse_file(content_of(kFixtures / "mlp_adamw" / "model.onnx"), {"ONNX model"});
  const std::string whole = content_of(kFixtures / "mlp_adamw" / "checkpoint");
  refuse_file(whole.substr(0, whole.size() - 100), {"truncated or damaged"});
  check_error(ErrorCode::kNoSuchFile, {"nothing"}, [&] { CheckpointState::load(folder / "nothing"); });
  check_error(ErrorCode::kInvalidArgument, {"null"}, [&] { CheckpointState::load(nullptr, 4); });
  refuse(ErrorCode::kFail, {"memory", "nothing"}, "");

  std::filesystem::create_directory(folder / "old");
  check_error(ErrorCode::kFail, {"found a folder"}, [&] { CheckpointState::load(folder / "old"); });
  put(folder / "old/paramtrain_tensors.pbseq", "x");
  check_error(ErrorCode::kFail, {"before 1.16", "paramtrain_tensors.pbseq", "version 2"},
              [&] { CheckpointState::load(folder / "old"); });
}

TEST_CASE("Cut and damaged checkpoints end in an error or in a state") {
  int loaded = 0;
  const auto use = [&](const std::string& bytes) {
    const auto state = load(bytes);
    // Saving syncs the disk, so save only now and then.
    if (++loaded % 50 == 0 && state->parameters_size(false) < 100'000) bytes_of(*state);
  };
  damage(content_of(kFixtures / "regressor_mse" / "checkpoint"), 3000, use);
  damage(content_of(kFixtures / "regressor_mse" / "checkpoint_after"), 3000, use);
  damage(bytes_of(sample()), 5000, use);
  Draft nominal;
  nominal.nominal = true;
  nominal.trainable = {{"w", {2, 3}, 0}};
  nominal.frozen = {};
  nominal.property_names = {"a", "b"};
  damage(nominal.bytes(), 3000, use);
}

TEST_CASE("A checkpoint that cannot be saved leaves the old file as it was") {
  Folder folder;
  const auto state = CheckpointState::load(kFixtures / "encoder" / "checkpoint_after");
  sample().save(folder / "c", true);
  {
    FullDisk full(100'000);
    check_error(ErrorCode::kFail, {(folder / "c").string(), "File too large", "unchanged"},
                [&] { state->save(folder / "c", true); });
  }
  check_same(sample(), *CheckpointState::load(folder / "c"));
  CHECK(folder.names() == std::vector<std::string>{"c"});
  check_error(ErrorCode::kFail, {"none/c", "there is no folder"},
              [&] { state->save(folder / "none/c", true); });
  check_error(ErrorCode::kFail, {"is not a folder"}, [&] { state->save(folder / "c/c", true); });
  check_error(ErrorCode::kInvalidArgument, {"a folder"}, [&] { state->save(folder.path(), true); });
  check_error(ErrorCode::kInvalidArgument, {"/dev/full", "special file"},
              [&] { state->save("/dev/full", true); });
  state->save(folder / "c", true);
  check_same(*state, *CheckpointState::load(folder / "c"));
}

TEST_CASE("Loading a checkpoint takes the memory of its values once") {
  const Folder folder;
  constexpr int kParameters = 3;
  constexpr int64_t kElements = int64_t{4} << 20;  // 16 MiB each
  {
    CheckpointState state;
    Tensor values(DType::kFloat, {kElements});
    for (int i = 0; i < kParameters; ++i) {
      std::fill_n(values.data<float>(), kElements, static_cast<float>(i + 1));
      state.add_parameter("p" + std::to_string(i), i > 0, values);
    }
    state.make_arenas();
    state.make_moments(1);
    CheckpointIo::write(state, folder / "one", true);
    CheckpointIo::write(state, folder / "two", true, 1 << 20);  // the values are in a second file
  }
#if defined(__GLIBC__)
  ::malloc_trim(0);  // memory that was used before would be used again and not count
#endif
  for (const char* name : {"one", "two"}) {
    INFO(name);
    // In a separate process, so that the peak starts at its current memory.
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      const auto field = [](const std::string& wanted) {
        std::ifstream status("/proc/self/status");
        for (std::string key; status >> key;)
          if (long kib = 0; key == wanted && status >> kib) return kib;
        return -1L;
      };
      const long before = field("VmHWM:");
      const auto state = CheckpointState::load(folder / name);
      const long growth = (field("VmHWM:") - before) >> 10;
      const bool right = state->parameter("p2").data.data<float>()[kElements - 1] == 3;
      const long expected = (kParameters + 2) * 16;  // two momentums
      std::_Exit(!right ? 1 : growth > expected + expected / 4 ? 2 : growth < expected / 2 ? 3 : 0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
}

TEST_CASE("A file that becomes shorter while it is read ends in an error") {
  const Folder folder;
  put(folder / "file", std::string(100000, 'x'));
  const MappedFile file(folder / "file", "test file");
  std::vector<std::byte> part(1000);
  file.read(part.data(), file.data() + 98000, part.size());
  CHECK(part.back() == std::byte{'x'});
  std::filesystem::resize_file(folder / "file", 98500);
  check_error(ErrorCode::kFail, {"test file", "truncated"},
              [&] { file.read(part.data(), file.data() + 98000, part.size()); });
}
