// Fine-tunes a model on a folder of images with one folder per class; see README.md in this folder for
// details.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "onnxruntime_training_cxx_api.h"

namespace {

namespace fs = std::filesystem;

/** The given files are invalid. */
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/** The command line is invalid. */
struct WrongUsage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Samples.

struct Samples {
  size_t size;                // pixels in an image
  std::vector<float> pixels;  // from 0 to 1
  std::vector<int64_t> labels;
};

/** The entries of a folder, sorted by name, without hidden files. */
std::vector<std::string> entries(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (const std::string name = at->path().filename().string(); name[0] != '.') names.push_back(name);
  if (error) throw Refused(folder + ": " + error.message());
  std::sort(names.begin(), names.end());
  return names;
}

/** A number in the header of an image, with the whitespace and comments before it. */
std::optional<size_t> read_number(std::istream& file) {
  if (!std::isspace(file.peek())) return std::nullopt;
  while (std::isspace(file.peek()) || file.peek() == '#') {
    if (file.get() != '#') continue;
    while (file.peek() != '\n' && file.peek() != EOF) file.get();
  }
  size_t number = 0;
  if (!std::isdigit(file.peek())) return std::nullopt;
  while (std::isdigit(file.peek()) && number < 100000000)
    number = number * 10 + static_cast<size_t>(file.get() - '0');
  return number;
}

/** Adds an image, which must have samples.size pixels, and its label. */
void read_image(const std::string& path, int64_t label, Samples& samples) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Refused(path + ": " + std::generic_category().message(errno));
  const bool is_pgm = file.get() == 'P' && file.get() == '5';
  const auto width = is_pgm ? read_number(file) : std::nullopt;
  const auto height = width ? read_number(file) : std::nullopt;
  const auto greatest = height ? read_number(file) : std::nullopt;
  if (!greatest || *greatest < 1 || *greatest > 255 || !std::isspace(file.get()))
    throw Refused(path + ": expected an 8-bit binary PGM image (P5)");

  const std::string size = std::to_string(samples.size);
  if (*width * *height != samples.size)
    throw Refused(path + ": expected " + size + " pixels, found " + std::to_string(*width) + " x " +
                  std::to_string(*height));
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  if (bytes.size() != samples.size)
    throw Refused(path + ": expected " + size + " bytes of pixels, found " + std::to_string(bytes.size()));
  for (const char byte : bytes)
    samples.pixels.push_back(static_cast<float>(static_cast<unsigned char>(byte)) /
                             static_cast<float>(*greatest));
  samples.labels.push_back(label);
}

/** Adds all samples, sorted by class and name; returns the number of classes. */
size_t read_samples(const std::string& folder, Samples& samples) {
  std::vector<std::string> classes = entries(folder);
  for (const std::string& name : classes) {
    const bool is_number = name.find_first_not_of("0123456789") == std::string::npos && name.size() <= 9;
    if (!is_number || !fs::is_directory(folder + "/" + name))
      throw Refused(folder + "/" + name + ": expected a folder named by the number of its class");
  }
  std::stable_sort(classes.begin(), classes.end(),
                   [](const std::string& a, const std::string& b) { return std::stol(a) < std::stol(b); });
  for (const std::string& name : classes) {
    const std::string class_folder = folder + "/" + name;
    for (const std::string& image : entries(class_folder))
      read_image(class_folder + "/" + image, std::stol(name), samples);
  }
  return classes.size();
}

/** SplitMix64 (Steele, Lea and Flood 2014). */
uint64_t next_random(uint64_t& state) {
  uint64_t z = state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/** Fisher-Yates shuffle. */
std::vector<size_t> shuffled(std::vector<size_t> numbers, uint64_t state) {
  for (size_t i = numbers.size() - 1; i > 0; --i)
    std::swap(numbers[i], numbers[next_random(state) % (i + 1)]);
  return numbers;
}

// Training.

struct Options {
  std::string artifacts, samples, out;
  std::optional<std::string> output, resume;
  int64_t epochs = 5, batch = 16, seed = 0;
  float learning_rate = 1e-3f;
};

bool on_terminal() { return isatty(STDOUT_FILENO) != 0; }

/** A training session on the artifacts of a model. */
class Personalization {
 public:
  Personalization(const Options& options, const std::string& checkpoint)
      : state_(Ort::CheckpointState::LoadCheckpoint(checkpoint)),
        session_(env_, Ort::SessionOptions(), state_, options.artifacts + "/training_model.onnx",
                 options.artifacts + "/eval_model.onnx", options.artifacts + "/optimizer_model.onnx"),
        batch_(static_cast<size_t>(options.batch)) {
    const Ort::TensorTypeAndShapeInfo info = session_.GetModelInputTypeInfo(/*training=*/true, 0);
    shape_ = info.GetShape();
    if (info.GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT || shape_.empty() || shape_[0] != -1 ||
        std::any_of(shape_.begin() + 1, shape_.end(), [](int64_t dimension) { return dimension < 1; }))
      throw Refused(options.artifacts +
                    "/training_model.onnx: expected a first input of floats with a variable " +
                    "batch and fixed dimensions, found type " + std::to_string(info.GetElementType()) +
                    " of rank " + std::to_string(shape_.size()));
    session_.SetLearningRate(options.learning_rate);
  }

  /** Number of pixels in an image. */
  size_t size() const {
    return static_cast<size_t>(
        std::accumulate(shape_.begin() + 1, shape_.end(), int64_t{1}, std::multiplies<>()));
  }

  std::vector<std::string> eval_outputs() { return session_.OutputNames(/*training=*/false); }

  /** Number of epochs that the checkpoint has completed. */
  std::optional<int64_t> epochs_behind() const {
    const std::vector<std::string> names = state_.PropertyNames();
    if (std::find(names.begin(), names.end(), "epochs") == names.end()) return std::nullopt;
    const Ort::Property epochs = state_.GetProperty("epochs");
    const auto* number = std::get_if<int64_t>(&epochs);
    return number ? std::optional(*number) : std::nullopt;
  }

  /** Takes a step for every full batch; returns the mean loss. */
  double train_epoch(const Samples& samples, const std::vector<size_t>& order, const std::string& title) {
    const size_t steps = order.size() / batch_;
    const auto began = std::chrono::steady_clock::now();
    double total = 0;
    for (size_t step = 1; step <= steps; ++step) {
      const auto inputs = make_inputs(samples, &order[(step - 1) * batch_], batch_);
      const std::vector<Ort::Value> outputs = session_.TrainStep(inputs);
      session_.OptimizerStep();
      session_.LazyResetGrad();
      total += *outputs.front().GetTensorData<float>();
      if (!on_terminal()) continue;
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
      const std::string bar(20 * step / steps, '#');
      std::printf("\r%s  [%s%s]  %zu/%zu  loss %.4f  %.0f samples/s", title.c_str(), bar.c_str(),
                  std::string(20 - bar.size(), '.').c_str(), step, steps, total / static_cast<double>(step),
                  static_cast<double>(step * batch_) / took.count());
      std::fflush(stdout);
    }
    return total / static_cast<double>(steps);
  }

  /** The mean loss of some samples, and the number classified correctly if the model has scores. */
  std::pair<double, std::optional<size_t>> evaluate(const Samples& samples,
                                                    const std::vector<size_t>& numbers) {
    double total = 0;
    std::optional<size_t> right;
    for (size_t start = 0; start < numbers.size(); start += batch_) {
      const size_t count = std::min(batch_, numbers.size() - start);
      const auto inputs = make_inputs(samples, &numbers[start], count);
      const std::vector<Ort::Value> outputs = session_.EvalStep(inputs);
      total += static_cast<double>(*outputs.front().GetTensorData<float>()) * static_cast<double>(count);
      if (outputs.size() > 1) {
        const auto more = count_right(outputs[1]);
        right = more ? std::optional(right.value_or(0) + *more) : right;
      }
    }
    return {total / static_cast<double>(numbers.size()), right};
  }

  /** Saves everything needed to resume. */
  void save(const std::string& path, int64_t epochs, float loss) {
    state_.AddProperty("epochs", epochs);
    state_.AddProperty("loss", loss);
    Ort::CheckpointState::SaveCheckpoint(state_, path, /*include_optimizer_state=*/true);
  }

  void export_model(const std::string& path, const std::string& output) {
    session_.ExportModelForInferencing(path, {output});
  }

 private:
  /** Copies samples into the batch and wraps it as tensors, which share its memory. */
  std::vector<Ort::Value> make_inputs(const Samples& samples, const size_t* numbers, size_t count) {
    images_.clear();
    labels_.clear();
    for (size_t i = 0; i < count; ++i) {
      const auto image = samples.pixels.begin() + static_cast<std::ptrdiff_t>(numbers[i] * samples.size);
      images_.insert(images_.end(), image, image + static_cast<std::ptrdiff_t>(samples.size));
      labels_.push_back(samples.labels[numbers[i]]);
    }
    shape_[0] = static_cast<int64_t>(count);
    std::vector<Ort::Value> inputs;
    inputs.push_back(Ort::Value::CreateTensor<float>(memory_, images_.data(), images_.size(), shape_.data(),
                                                     shape_.size()));
    inputs.push_back(
        Ort::Value::CreateTensor<int64_t>(memory_, labels_.data(), labels_.size(), shape_.data(), 1));
    return inputs;
  }

  /** The number of samples of the batch whose highest score is that of their label; none for other values.
   */
  std::optional<size_t> count_right(const Ort::Value& scores) const {
    const Ort::TensorTypeAndShapeInfo info = scores.GetTensorTypeAndShapeInfo();
    const std::vector<int64_t> shape = info.GetShape();
    if (info.GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT || shape.size() != 2 ||
        shape[0] != static_cast<int64_t>(labels_.size()))
      return std::nullopt;
    size_t right = 0;
    const float* row = scores.GetTensorData<float>();
    for (size_t i = 0; i < labels_.size(); ++i, row += shape[1])
      right += std::max_element(row, row + shape[1]) - row == labels_[i];
    return right;
  }

  const Ort::Env env_{ORT_LOGGING_LEVEL_WARNING, "personalize"};
  const Ort::MemoryInfo memory_ = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  Ort::CheckpointState state_;
  Ort::TrainingSession session_;
  size_t batch_;
  std::vector<int64_t> shape_;  // of the images; the first dimension is the batch
  std::vector<float> images_;   // the batch that a step reads
  std::vector<int64_t> labels_;
};

void personalize(const Options& options) {
  const std::string checkpoint = options.resume.value_or(options.artifacts + "/checkpoint");
  Personalization training(options, checkpoint);
  const std::vector<std::string> outputs = training.eval_outputs();
  if (!options.output && outputs.size() < 2)
    throw Refused(options.artifacts + "/eval_model.onnx: it has no output besides the loss; " +
                  "name a value to export with --output");
  const std::string output = options.output ? *options.output : outputs[1];

  Samples samples{training.size(), {}, {}};
  const size_t classes = read_samples(options.samples, samples);
  std::vector<size_t> train, held_out;
  for (size_t i = 0; i < samples.labels.size(); ++i) (i % 5 == 4 ? held_out : train).push_back(i);
  if (held_out.empty() || train.size() < static_cast<size_t>(options.batch))
    throw Refused(options.samples + ": expected at least 5 samples and " + std::to_string(options.batch) +
                  " for training, found " + std::to_string(samples.labels.size()) + " and " +
                  std::to_string(train.size()));
  const std::optional<int64_t> done = options.resume ? training.epochs_behind() : 0;
  if (!done)
    throw Refused(checkpoint + ": expected a checkpoint that this program saved, with the property epochs");
  if (*done >= options.epochs)
    throw Refused(checkpoint + ": it has " + std::to_string(*done) +
                  " epochs already; expected a larger --epochs, found " + std::to_string(options.epochs));
  std::error_code error;
  fs::create_directory(options.out, error);
  if (error) throw Refused(options.out + ": " + error.message());
  std::printf("%zu samples of %zu classes: %zu for training, %zu held out\n", samples.labels.size(), classes,
              train.size(), held_out.size());
  std::fflush(stdout);

  for (int64_t epoch = *done + 1; epoch <= options.epochs; ++epoch) {
    const std::string title = "epoch " + std::to_string(epoch) + "/" + std::to_string(options.epochs);
    const uint64_t seed = (static_cast<uint64_t>(options.seed) << 32) + static_cast<uint64_t>(epoch);
    const double loss = training.train_epoch(samples, shuffled(train, seed), title);
    const auto [held_out_loss, right] = training.evaluate(samples, held_out);

    // On a terminal this overwrites the progress line and clears the rest of it.
    std::printf("%s%s: loss %.4f, held-out loss %.4f", on_terminal() ? "\r" : "", title.c_str(), loss,
                held_out_loss);
    if (right) {
      const size_t tenths = (1000 * *right + held_out.size() / 2) / held_out.size();
      std::printf(", accuracy %zu.%zu%%", tenths / 10, tenths % 10);
    }
    std::puts(on_terminal() ? "\033[K" : "");
    std::fflush(stdout);
    training.save(options.out + "/checkpoint", epoch, static_cast<float>(loss));
  }
  std::printf("saved %s/checkpoint\n", options.out.c_str());
  training.export_model(options.out + "/model.onnx", output);
  std::printf("exported %s/model.onnx with output %s\n", options.out.c_str(), output.c_str());
}

// The command line.

constexpr const char* kUsage =
    "usage: personalize ARTIFACTS SAMPLES OUT [--epochs N] [--batch N] [--learning-rate X] [--seed N]\n"
    "                   [--output NAME] [--resume CHECKPOINT] [--help]\n";

constexpr const char* kHelp = R"(
Fine-tunes a model on a folder of images with one folder per class.

  ARTIFACTS            folder of the training artifacts
  SAMPLES              folder with one folder of PGM images per class
  OUT                  folder for the checkpoint and the trained model
  --epochs N           total number of epochs (default 5)
  --batch N            samples per step (default 16)
  --learning-rate X    learning rate (default 0.001)
  --seed N             seed of the shuffling (default 0)
  --output NAME        value to export (default: the eval model's second output)
  --resume CHECKPOINT  resume from a checkpoint that this program saved
)";

int64_t whole_number(const std::string& option, const std::string& text, int64_t lowest) {
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  const int64_t value = digits && text.size() < 18 ? std::stoll(text) : -1;
  if (value < lowest || value > INT32_MAX)
    throw WrongUsage(option + ": expected a whole number from " + std::to_string(lowest) + " to " +
                     std::to_string(INT32_MAX) + ", found " + text);
  return value;
}

float rate(const std::string& option, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(value) || value <= 0)
    throw WrongUsage(option + ": expected a finite number above 0, found " + text);
  return static_cast<float>(value);
}

Options read_command_line(const std::vector<std::string>& arguments) {
  Options options;
  const std::map<std::string, std::function<void(const std::string&, const std::string&)>> known{
      {"--epochs", [&](auto& option, auto& value) { options.epochs = whole_number(option, value, 1); }},
      {"--batch", [&](auto& option, auto& value) { options.batch = whole_number(option, value, 1); }},
      {"--learning-rate", [&](auto& option, auto& value) { options.learning_rate = rate(option, value); }},
      {"--seed", [&](auto& option, auto& value) { options.seed = whole_number(option, value, 0); }},
      {"--output", [&](auto&, auto& value) { options.output = value; }},
      {"--resume", [&](auto&, auto& value) { options.resume = value; }},
  };
  const std::pair<const char*, std::string*> positions[] = {
      {"ARTIFACTS", &options.artifacts}, {"SAMPLES", &options.samples}, {"OUT", &options.out}};
  size_t given = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& option = arguments[i];
    if (option.compare(0, 2, "--") != 0) {
      if (given == 3) throw WrongUsage("unexpected argument " + option);
      *positions[given++].second = option;
      continue;
    }
    const auto found = known.find(option);
    if (found == known.end()) throw WrongUsage("there is no option " + option);
    if (i + 1 == arguments.size()) throw WrongUsage(option + ": expected a value");
    found->second(option, arguments[++i]);
  }
  if (given < 3) throw WrongUsage(std::string(positions[given].first) + " is missing");
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end()) {
    std::cout << kUsage << kHelp;
    return 0;
  }
  try {
    personalize(read_command_line(arguments));
  } catch (const WrongUsage& error) {
    std::cerr << kUsage << "personalize: error: " << error.what() << '\n';
    return 2;
  } catch (const std::exception& error) {  // Ort::Exception is one
    std::cerr << "error: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
