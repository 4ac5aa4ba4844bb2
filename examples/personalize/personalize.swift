// Fine-tunes a model on a folder of images with one folder per class; see README.md in this folder for details.
import Foundation
import onnxruntime_training_objc

/// The given files are invalid; the message says why.
struct Refused: Error {
  let message: String

  init(_ message: String) { self.message = message }

  /// The system's message about a file or a folder.
  init(_ path: String, reason: Int32) { message = "\(path): \(String(cString: strerror(reason)))" }
}

/// The command line is invalid.
struct WrongUsage: Error {
  let message: String

  init(_ message: String) { self.message = message }
}

/// Images with their class indices.
struct Samples {
  let size: Int
  private(set) var classes = 0
  private var pixels: [Float] = []
  private var labels: [Int64] = []

  var count: Int { labels.count }

  /// Reads all samples of a folder, sorted by class and name; `size` is the number of pixels in an image.
  init(_ folder: String, size: Int) throws {
    self.size = size
    let names = try Self.entries(folder)
    for name in names {
      let isNumber = name.utf8.count <= 9 && name.utf8.allSatisfy { (48...57).contains($0) }
      if !isNumber || !Self.isFolder("\(folder)/\(name)") {
        throw Refused("\(folder)/\(name): expected a folder named by the number of its class")
      }
    }
    classes = names.count
    for name in names.sorted(by: { Int($0)! < Int($1)! }) {
      for image in try Self.entries("\(folder)/\(name)") {
        try add("\(folder)/\(name)/\(image)", Int64(name)!)
      }
    }
  }

  /// Copies a sample to a place in a batch.
  func copy(
    _ number: Int, to place: Int, _ images: UnsafeMutableBufferPointer<Float>, _ classes: UnsafeMutableBufferPointer<Int64>
  ) {
    for i in 0..<size { images[place * size + i] = pixels[number * size + i] }
    classes[place] = labels[number]
  }

  /// The entries of a folder, sorted by name, byte by byte, without hidden files.
  private static func entries(_ folder: String) throws -> [String] {
    guard let stream = opendir(folder) else { throw Refused(folder, reason: errno) }
    defer { closedir(stream) }
    var names: [String] = []
    while let entry = readdir(stream) {
      let name = withUnsafeBytes(of: entry.pointee.d_name) { bytes in
        String(decoding: bytes.prefix { $0 != 0 }, as: UTF8.self)
      }
      if !name.hasPrefix(".") { names.append(name) }
    }
    return names.sorted { $0.utf8.lexicographicallyPrecedes($1.utf8) }
  }

  private static func isFolder(_ path: String) -> Bool {
    var isFolder: ObjCBool = false
    return FileManager.default.fileExists(atPath: path, isDirectory: &isFolder) && isFolder.boolValue
  }

  private static func content(_ path: String) throws -> [UInt8] {
    guard let file = fopen(path, "rb") else { throw Refused(path, reason: errno) }
    defer { fclose(file) }
    var content: [UInt8] = []
    var part = [UInt8](repeating: 0, count: 65536)
    while true {
      let count = fread(&part, 1, part.count, file)
      if ferror(file) != 0 { throw Refused(path, reason: errno) }
      if count == 0 { return content }
      content += part[..<count]
    }
  }

  private mutating func add(_ path: String, _ label: Int64) throws {
    var header = Header(content: try Self.content(path))
    guard header.content.starts(with: [80, 53]), let width = header.number(), let height = header.number(),
      let greatest = header.number(), (1...255).contains(greatest), header.isSpace
    else { throw Refused("\(path): expected an 8-bit binary PGM image (P5)") }
    let bytes = header.content[(header.at + 1)...]
    if width * height != size { throw Refused("\(path): expected \(size) pixels, found \(width) x \(height)") }
    if bytes.count != size { throw Refused("\(path): expected \(size) bytes of pixels, found \(bytes.count)") }
    for byte in bytes { pixels.append(Float(byte) / Float(greatest)) }
    labels.append(label)
  }

  /// The header of an image, after `P5`.
  private struct Header {
    let content: [UInt8]
    var at = 2

    var isSpace: Bool { at < content.count && (content[at] == 32 || (9...13).contains(content[at])) }

    /// A number with the whitespace and comments before it.
    mutating func number() -> Int? {
      if !isSpace { return nil }
      while isSpace || (at < content.count && content[at] == 35) {
        if content[at] == 35 {
          while at < content.count && content[at] != 10 { at += 1 }
        } else {
          at += 1
        }
      }
      let start = at
      var number = 0
      while at < content.count && (48...57).contains(content[at]) && number < 100_000_000 {
        number = 10 * number + Int(content[at]) - 48
        at += 1
      }
      return at > start ? number : nil
    }
  }
}

/// The options of the command line.
struct Options {
  static let usage = """
    usage: personalize ARTIFACTS SAMPLES OUT [--epochs N] [--batch N] [--learning-rate X] [--seed N]
                       [--output NAME] [--resume CHECKPOINT] [--help]

    """

  static let help = """

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

    """

  private(set) var artifacts = ""
  private(set) var samples = ""
  private(set) var out = ""
  private(set) var epochs = 5
  private(set) var batch = 16
  private(set) var learningRate: Float = 1e-3
  private(set) var seed = 0
  private(set) var output: String?
  private(set) var resume: String?

  init(_ arguments: [String]) throws {
    var positions: [String] = []
    var rest = arguments[...]
    while let option = rest.popFirst() {
      if !option.hasPrefix("--") {
        if positions.count == 3 { throw WrongUsage("unexpected argument \(option)") }
        positions.append(option)
        continue
      }
      try set(option, rest.popFirst())
    }
    if positions.count < 3 { throw WrongUsage("\(["ARTIFACTS", "SAMPLES", "OUT"][positions.count]) is missing") }
    (artifacts, samples, out) = (positions[0], positions[1], positions[2])
  }

  private mutating func set(_ option: String, _ text: String?) throws {
    func given() throws -> String {
      guard let text else { throw WrongUsage("\(option): expected a value") }
      return text
    }
    func wholeNumber(from lowest: Int) throws -> Int {
      let text = try given()
      guard text.utf8.allSatisfy({ (48...57).contains($0) }), let value = Int32(text), value >= lowest else {
        throw WrongUsage("\(option): expected a whole number from \(lowest) to \(Int32.max), found \(text)")
      }
      return Int(value)
    }
    switch option {
    case "--epochs": epochs = try wholeNumber(from: 1)
    case "--batch": batch = try wholeNumber(from: 1)
    case "--seed": seed = try wholeNumber(from: 0)
    case "--output": output = try given()
    case "--resume": resume = try given()
    case "--learning-rate":
      let text = try given()
      guard let value = Double(text), value > 0, value.isFinite else {
        throw WrongUsage("\(option): expected a finite number above 0, found \(text)")
      }
      learningRate = Float(value)
    default: throw WrongUsage("there is no option \(option)")
    }
  }
}

/// A training session on the artifacts of a model.
final class Personalization {
  /// Number of pixels in an image.
  let size: Int

  private let state: ORTCheckpoint
  private let session: ORTTrainingSession
  private let imageShape: [Int]
  private let batch: Int

  init(_ options: Options, checkpoint: String) throws {
    state = try ORTCheckpoint(path: checkpoint)
    session = try ORTTrainingSession(
      env: ORTEnv(loggingLevel: .warning), sessionOptions: nil, checkpoint: state,
      trainModelPath: "\(options.artifacts)/training_model.onnx", evalModelPath: "\(options.artifacts)/eval_model.onnx",
      optimizerModelPath: "\(options.artifacts)/optimizer_model.onnx")
    let input = try session.getModelInputTypeInfo(withTraining: true, index: 0)
    let shape = input.shape.map(\.intValue)
    if input.elementType != .float || shape.first != -1 || shape.dropFirst().contains(where: { $0 < 1 }) {
      throw Refused(
        "\(options.artifacts)/training_model.onnx: expected a first input of floats with a variable batch and fixed dimensions, "
          + "found \(input.elementType) of shape \(shape)")
    }
    imageShape = Array(shape.dropFirst())
    size = imageShape.reduce(1, *)
    batch = options.batch
    try session.setLearningRate(options.learningRate)
  }

  func evalOutputs() throws -> [String] { try session.getEvalOutputNames() }

  /// Number of epochs that the checkpoint has completed.
  func epochsBehind() throws -> Int? {
    let isThere = try state.getPropertyNames().contains("epochs")
    if try !isThere || state.getPropertyType(withPropertyName: "epochs") != .int { return nil }
    return Int(try state.getIntProperty(withName: "epochs"))
  }

  /// Takes a step for every full batch; returns the mean loss.
  func trainEpoch(_ samples: Samples, _ order: [Int], progress: (Int, Int, Double) -> Void) throws -> Double {
    let steps = order.count / batch
    var total = 0.0
    let inputs = try makeInputs(batch)  // one batch after another is written into them
    for step in 1...steps {
      try fill(inputs, samples, order[((step - 1) * batch)..<(step * batch)])
      total += Double(try session.trainStep(withInputValues: inputs)[0].array(of: Float.self)[0])
      try session.optimizerStep()
      try session.lazyResetGrad()
      progress(step, steps, total / Double(step))
    }
    return total / Double(steps)
  }

  /// The mean loss of some samples, and the number classified correctly if the model has scores.
  func evaluate(_ samples: Samples, _ numbers: [Int]) throws -> (loss: Double, right: Int?) {
    var total = 0.0
    var right: Int?
    for start in stride(from: 0, to: numbers.count, by: batch) {
      let part = numbers[start..<min(start + batch, numbers.count)]
      let inputs = try makeInputs(part.count)
      try fill(inputs, samples, part)
      let outputs = try session.evalStep(withInputValues: inputs)
      total += Double(try outputs[0].array(of: Float.self)[0]) * Double(part.count)
      if outputs.count > 1, let more = try countRight(outputs[1], try inputs[1].array(of: Int64.self)) {
        right = (right ?? 0) + more
      }
    }
    return (total / Double(numbers.count), right)
  }

  /// Saves everything needed to resume.
  func save(_ path: String, epochs: Int, loss: Float) throws {
    try state.addIntProperty(withName: "epochs", value: Int64(epochs))
    try state.addFloatProperty(withName: "loss", value: loss)
    try state.saveCheckpoint(toPath: path, withOptimizerState: true)
  }

  func export(_ path: String, _ output: String) throws {
    try session.exportModelForInference(withOutputPath: path, graphOutputNames: [output])
  }

  /// Images and labels.
  private func makeInputs(_ count: Int) throws -> [ORTValue] {
    [
      try ORTValue([Float](repeating: 0, count: count * size), shape: [count] + imageShape),
      try ORTValue([Int64](repeating: 0, count: count), shape: [count]),
    ]
  }

  private func fill(_ inputs: [ORTValue], _ samples: Samples, _ numbers: ArraySlice<Int>) throws {
    try inputs[0].withUnsafeElements(of: Float.self) { images in
      try inputs[1].withUnsafeElements(of: Int64.self) { labels in
        for (place, number) in numbers.enumerated() { samples.copy(number, to: place, images, labels) }
      }
    }
  }

  /// How many samples have their highest score at their label; nil for values that are not scores.
  private func countRight(_ scores: ORTValue, _ labels: [Int64]) throws -> Int? {
    let shape = try scores.shape
    if try scores.tensorTypeAndShapeInfo().elementType != .float || shape.count != 2 || shape[0] != labels.count { return nil }
    let all = try scores.array(of: Float.self)
    return labels.indices.count { i in
      let row = all[(i * shape[1])..<((i + 1) * shape[1])]
      var best = row.startIndex
      for c in row.indices where row[c] > row[best] { best = c }
      return best - row.startIndex == labels[i]
    }
  }
}

@main
enum Program {
  static func main() {
    let arguments = Array(CommandLine.arguments.dropFirst())
    if arguments.contains("--help") {
      write(Options.usage + Options.help)
      return
    }
    do {
      try personalize(try Options(arguments))
    } catch let error as WrongUsage {
      stop("\(Options.usage)personalize: error: \(error.message)\n", 2)
    } catch let error as Refused {
      stop("error: \(error.message)\n", 1)
    } catch {
      stop("error: \((error as NSError).localizedDescription)\n", 1)
    }
  }

  /// Writes immediately, bypassing the buffer of `print`.
  private static func write(_ text: String) {
    FileHandle.standardOutput.write(Data(text.utf8))
  }

  private static func stop(_ message: String, _ status: Int32) -> Never {
    FileHandle.standardError.write(Data(message.utf8))
    exit(status)
  }

  private static func personalize(_ options: Options) throws {
    let checkpoint = options.resume ?? "\(options.artifacts)/checkpoint"
    let training = try Personalization(options, checkpoint: checkpoint)
    let values = try training.evalOutputs()
    guard let exported = options.output ?? values.dropFirst().first else {
      throw Refused(
        "\(options.artifacts)/eval_model.onnx: it has no output besides the loss; name a value to export with --output")
    }
    let samples = try Samples(options.samples, size: training.size)
    let train = (0..<samples.count).filter { $0 % 5 != 4 }
    let heldOut = (0..<samples.count).filter { $0 % 5 == 4 }
    if heldOut.isEmpty || train.count < options.batch {
      throw Refused(
        "\(options.samples): expected at least 5 samples and \(options.batch) for training, found \(samples.count) and "
          + "\(train.count)")
    }
    let done = try epochsDone(options, training, checkpoint)
    try makeFolder(options.out)
    write(
      "\(samples.count) samples of \(samples.classes) classes: \(train.count) for training, \(heldOut.count) held out\n")

    let onTerminal = isatty(STDOUT_FILENO) != 0
    for epoch in (done + 1)...options.epochs {
      let title = "epoch \(epoch)/\(options.epochs)"
      let order = shuffled(train, state: UInt64(options.seed) << 32 + UInt64(epoch))
      let began = ContinuousClock.now
      let loss = try training.trainEpoch(samples, order) { step, steps, mean in
        if !onTerminal { return }
        let bar = String(repeating: "#", count: 20 * step / steps)
        let speed = Double(step * options.batch) / (began.duration(to: .now) / .seconds(1))
        write(
          "\r\(title)  [\(bar.padding(toLength: 20, withPad: ".", startingAt: 0))]  \(step)/\(steps)  "
            + String(format: "loss %.4f  %.0f samples/s", mean, speed))
      }
      let (heldOutLoss, right) = try training.evaluate(samples, heldOut)

      var line = title + String(format: ": loss %.4f, held-out loss %.4f", loss, heldOutLoss)
      if let right {
        let tenths = (1000 * right + heldOut.count / 2) / heldOut.count
        line += ", accuracy \(tenths / 10).\(tenths % 10)%"
      }
      // On a terminal this overwrites the progress line and clears the rest of it.
      write(onTerminal ? "\r\(line)\u{1b}[K\n" : "\(line)\n")
      try training.save("\(options.out)/checkpoint", epochs: epoch, loss: Float(loss))
    }
    write("saved \(options.out)/checkpoint\n")
    try training.export("\(options.out)/model.onnx", exported)
    write("exported \(options.out)/model.onnx with output \(exported)\n")
  }

  private static func epochsDone(_ options: Options, _ training: Personalization, _ checkpoint: String) throws -> Int {
    if options.resume == nil { return 0 }
    guard let done = try training.epochsBehind() else {
      throw Refused("\(checkpoint): expected a checkpoint that this program saved, with the property epochs")
    }
    if done >= options.epochs {
      throw Refused("\(checkpoint): it has \(done) epochs already; expected a larger --epochs, found \(options.epochs)")
    }
    return done
  }

  /// Creates a folder if it does not exist, but not its parents.
  private static func makeFolder(_ path: String) throws {
    if mkdir(path, 0o777) == 0 { return }
    let reason = errno
    var isFolder: ObjCBool = false
    if FileManager.default.fileExists(atPath: path, isDirectory: &isFolder) && isFolder.boolValue { return }
    throw Refused(path, reason: reason)
  }

  /// Fisher-Yates shuffle.
  private static func shuffled(_ numbers: [Int], state: UInt64) -> [Int] {
    var shuffled = numbers
    var state = state
    for i in stride(from: shuffled.count - 1, to: 0, by: -1) {
      shuffled.swapAt(i, Int(nextRandom(&state) % UInt64(i + 1)))
    }
    return shuffled
  }

  /// SplitMix64 (Steele, Lea and Flood 2014).
  private static func nextRandom(_ state: inout UInt64) -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    var z = state
    z = (z ^ (z >> 30)) &* 0xBF58_476D_1CE4_E5B9
    z = (z ^ (z >> 27)) &* 0x94D0_49BB_1331_11EB
    return z ^ (z >> 31)
  }
}
