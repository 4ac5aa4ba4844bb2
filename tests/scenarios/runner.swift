// Runs a scenario with the Swift API; README.md beside this file says what a scenario is.
import Foundation
import onnxruntime_training_objc

/// The script is at fault, or something went otherwise than it says.
struct Fault: Error {
  let why: String

  init(_ why: String) { self.why = why }
}

@main
final class Runner {
  let data: String
  let out: String
  let env: ORTEnv
  var line = 0
  var text: Substring = ""
  var logging = true
  var objects: [String: AnyObject] = [:]

  init(data: String, out: String) throws {
    self.data = data
    self.out = out
    env = try ORTEnv(loggingLevel: .error)
  }

  static func main() {
    let arguments = CommandLine.arguments
    guard arguments.count == 4 else {
      FileHandle.standardError.write(Data("usage: \(arguments[0]) SCRIPT DATA OUT\n".utf8))
      exit(1)
    }
    var runner: Runner?
    do {
      let script = String(decoding: try file(arguments[1]), as: UTF8.self)
      runner = try Runner(data: arguments[2], out: arguments[3])
      try runner!.run(script.split(separator: "\n", omittingEmptySubsequences: false)[...], 0)
    } catch {
      let why = (error as? Fault)?.why ?? (error as NSError).localizedDescription
      fflush(nil)
      FileHandle.standardError.write(
        Data("\(arguments[1]):\(runner?.line ?? 0): \(runner?.text ?? ""): \(why)\n".utf8))
      exit(1)
    }
  }

  func log(_ line: String) {
    if logging { print(line) }
  }

  // MARK: Labels

  func find<Kind: AnyObject>(_ label: String, _ kind: String) throws -> Kind {
    guard let found = objects[label] as? Kind else { throw Fault("\(label) is no \(kind)") }
    return found
  }

  func state(_ label: String) throws -> ORTCheckpoint { try find(label, "state") }
  func session(_ label: String) throws -> ORTTrainingSession { try find(label, "session") }
  func model(_ label: String) throws -> ORTSession { try find(label, "model") }
  func tensor(_ label: String) throws -> ORTValue { try find(label, "tensor") }
  func tensors(_ labels: ArraySlice<String>) throws -> [ORTValue] { try labels.map(tensor) }

  func keep(_ label: String, _ object: AnyObject) {
    objects[label] = object
  }

  // MARK: Numbers and tensors as the script writes them

  func integer(_ text: String) throws -> Int64 {
    guard let value = Int64(text) else { throw Fault("\(text) is not a whole number") }
    return value
  }

  func number(_ text: String) throws -> Float {
    if text.hasPrefix("bits:"), let bits = UInt32(text.dropFirst(5), radix: 16) { return Float(bitPattern: bits) }
    guard let value = Double(text) else { throw Fault("\(text) is not a number") }
    return Float(value)
  }

  func flag(_ text: String, _ yes: String, _ no: String) throws -> Bool {
    guard text == yes || text == no else { throw Fault("expected \(yes) or \(no), found \(text)") }
    return text == yes
  }

  func hex(_ value: some BinaryInteger, _ width: Int) -> String {
    let digits = String(value, radix: 16)
    return String(repeating: "0", count: width - digits.count) + digits
  }

  func bits(_ value: Float) -> String { hex(value.bitPattern, 8) }

  static let types: [(name: String, type: ORTTensorElementDataType, bytes: Int)] = [
    ("float", .float, 4), ("float16", .float16, 2), ("double", .double, 8), ("int64", .int64, 8), ("int32", .int32, 4),
    ("bool", .bool, 1),
  ]

  func shape(_ text: String) throws -> [Int] {
    text == "-" ? [] : try text.split(separator: "x").map { Int(try integer(String($0))) }
  }

  func make(_ type: String, _ dims: String, _ elements: Data?) throws -> ORTValue {
    guard let found = Self.types.first(where: { $0.name == type }) else { throw Fault("there is no type \(type)") }
    let shape = try shape(dims)
    let size = shape.reduce(found.bytes, *)
    if let elements, elements.count != size { throw Fault("a tensor file has another size") }
    let data = elements.map { NSMutableData(data: $0) } ?? NSMutableData(length: size)!
    return try ORTValue(tensorData: data, elementType: found.type, shape: shape.map { NSNumber(value: $0) })
  }

  func described(_ info: ORTTensorTypeAndShapeInfo) throws -> String {
    guard let type = Self.types.first(where: { $0.type == info.elementType }) else {
      throw Fault("a tensor of type \(info.elementType)")
    }
    return "\(type.name) " + (info.shape.isEmpty ? "-" : info.shape.map(\.stringValue).joined(separator: "x"))
  }

  func show(_ what: String, _ value: ORTValue) throws {
    if !logging { return }
    let info = try value.tensorTypeAndShapeInfo()
    let description = try described(info)
    if info.shape.isEmpty && info.elementType == .float {
      log("\(what) \(description) \(bits(try value.array(of: Float.self)[0]))")
      return
    }
    let hash = try value.withUnsafeBytes { bytes in
      bytes.reduce(0xcbf2_9ce4_8422_2325 as UInt64) { ($0 ^ UInt64($1)) &* 0x100_0000_01b3 }
    }
    log("\(what) \(description) \(hex(hash, 16))")
  }

  func show(_ what: String, _ value: Float) throws { log("\(what) \(bits(value))") }
  func show(_ what: String, _ value: Int64) throws { log("\(what) \(value)") }
  func show(_ what: String, _ text: String?) throws { log("\(what) \(text!)") }
  func show(_ what: String, _ names: [String]) throws { log(([what] + names).joined(separator: " ")) }

  func showEach(_ what: String, _ names: [String], _ values: [ORTValue]) throws {
    for (name, value) in zip(names, values) { try show("\(what) \(name)", value) }
  }

  func showNamed(_ what: String, _ names: [String], _ values: [String: ORTValue]) throws {
    for name in names { try show("\(what) \(name)", values[name]!) }
  }

  // MARK: Tokens

  func optional(_ path: String) -> String? { path == "-" ? nil : path }

  func count(_ arguments: [String], _ at: Int) throws -> Int {
    let count = Int(try integer(arguments[at]))
    if count < 0 || count >= arguments.count - at - 1 { throw Fault("there are no tensors for the outputs") }
    return count
  }

  /// As many tensors as a token says, which follow it.
  func counted(_ arguments: [String], _ at: Int) throws -> [ORTValue] {
    try tensors(arguments[(at + 1)..<(at + 1 + count(arguments, at))])
  }

  /// The tensors behind counted ones.
  func rest(_ arguments: [String], _ at: Int) throws -> [ORTValue] {
    try tensors(arguments[(at + count(arguments, at - 1))...])
  }

  func countOfPairs(_ arguments: [String], _ at: Int) throws -> Int {
    let count = Int(try integer(arguments[at]))
    if count < 0 || 2 * count > arguments.count - at - 1 { throw Fault("there are not so many inputs") }
    return count
  }

  /// As many pairs of a name and a tensor as a token says, which follow it.
  func pairs(_ arguments: [String], _ at: Int) throws -> [String] {
    Array(arguments[(at + 1)..<(at + 1 + 2 * (try countOfPairs(arguments, at)))])
  }

  /// The tokens behind counted pairs.
  func behindPairs(_ arguments: [String], _ at: Int) throws -> [String] {
    Array(arguments[(at + 2 * (try countOfPairs(arguments, at - 1)))...])
  }

  func names(_ pairs: [String]) -> [String] { stride(from: 0, to: pairs.count, by: 2).map { pairs[$0] } }

  func values(_ pairs: [String]) throws -> [String: ORTValue] {
    if pairs.count % 2 != 0 { throw Fault("there is no tensor for \(pairs.last!)") }
    var values: [String: ORTValue] = [:]
    for i in stride(from: 0, to: pairs.count, by: 2) { values[pairs[i]] = try tensor(pairs[i + 1]) }
    return values
  }

  static func file(_ path: String) throws -> Data {
    guard let content = FileManager.default.contents(atPath: path) else { throw Fault("cannot read \(path)") }
    return content
  }

  // MARK: Commands

  func command_tensor(_ arguments: [String]) throws {
    let content = try Self.file(arguments[1])
    guard let newline = content.firstIndex(of: 10) else { throw Fault("\(arguments[1]) is not a tensor file") }
    let header = String(decoding: content[..<newline], as: UTF8.self).split(separator: " ").map(String.init)
    guard header.count == 2 else { throw Fault("\(arguments[1]) is not a tensor file") }
    keep(arguments[0], try make(header[0], header[1], content[(newline + 1)...]))
  }

  func command_zeros(_ arguments: [String]) throws {
    keep(arguments[0], try make(arguments[1], arguments[2], nil))
  }

  func command_show(_ arguments: [String]) throws {
    try show("tensor", try tensor(arguments[0]))
  }

  func command_describe(_ arguments: [String]) throws {
    let model = try model(arguments[0])
    for (i, name) in try model.inputNames().enumerated() {
      log("input \(name) \(try described(try model.inputTypeInfo(at: UInt(i)).tensorTypeAndShapeInfo!))")
    }
    for (i, name) in try model.outputNames().enumerated() {
      log("output \(name) \(try described(try model.outputTypeInfo(at: UInt(i)).tensorTypeAndShapeInfo!))")
    }
  }

  func command_release(_ arguments: [String]) throws {
    if objects.removeValue(forKey: arguments[0]) == nil { throw Fault("\(arguments[0]) names nothing") }
  }

  func command_log(_ arguments: [String]) throws {
    logging = try flag(arguments[0], "on", "off")
  }

  func command_resident(_ arguments: [String]) throws {
    let status = String(decoding: try Self.file("/proc/self/status"), as: UTF8.self)
    for line in status.split(separator: "\n") where line.hasPrefix("VmRSS:") {
      log("resident \(line.split(separator: " ")[1])")
    }
  }

  func command_measure(_ arguments: [String]) throws {
    let steps = try integer(arguments[0])
    if steps < 1 { throw Fault("expected 1 step or more") }
    let session = try session(arguments[1])
    let inputs = try tensors(arguments[2...])
    // Made by the first step, written into by the others.
    let outputs = try session.trainStep(withInputValues: inputs)
    var times: [UInt64] = []
    times.reserveCapacity(Int(steps))
    for _ in 0..<steps {
      let began = nanoseconds()
      try session.trainStep(withInputValues: inputs, outputValues: outputs, runOptions: nil)
      times.append(nanoseconds() - began)
    }
    times.sort()
    log("nanoseconds \(times[(times.count - 1) / 2])")
  }

  func nanoseconds() -> UInt64 {
    var now = timespec()
    clock_gettime(CLOCK_MONOTONIC, &now)
    return UInt64(now.tv_sec) * 1_000_000_000 + UInt64(now.tv_nsec)
  }

  // MARK: Scripts

  func runCommand(_ tokens: ArraySlice<String>) throws {
    guard let command = command(tokens.first!) else { throw Fault("there is no such command") }
    if !command.count.contains(tokens.count - 1) { throw Fault("wrong number of tokens") }
    try command.run(Array(tokens.dropFirst()))
  }

  func runLine(_ tokens: [String]) throws {
    if tokens[0] != "fails" {
      try runCommand(tokens[...])
      return
    }
    if tokens.count < 3 { throw Fault("wrong number of tokens") }
    let code = try integer(tokens[1])
    do {
      try runCommand(tokens[2...])
    } catch let error as Fault {
      throw error
    } catch let error as NSError {
      if error.domain != ORTErrorDomain { throw Fault("an error of the domain \(error.domain)") }
      if error.code != code {
        throw Fault("expected an error of code \(code), found \(error.code): \(error.localizedDescription)")
      }
      log("error \(code) \(error.localizedDescription)")
      return
    }
    throw Fault("expected an error of code \(code), found none")
  }

  func tokens(_ line: Substring, _ number: Int64) -> [String] {
    if line.hasPrefix("#") { return [] }
    return line.split(separator: " ").map { word in
      var token = String(word)
      if token.hasPrefix("data:") { token = "\(data)/\(token.dropFirst(5))" }
      if word.hasPrefix("out:") { token = "\(out)/\(token.dropFirst(4))" }
      return token.replacingOccurrences(of: "{}", with: String(number))
    }
  }

  /// The `end` that belongs to the `repeat` at `start`.
  func end(_ lines: ArraySlice<Substring>, _ start: Int) throws -> Int {
    var depth = 0
    for at in start..<lines.endIndex {
      let first = tokens(lines[at], 0).first
      if first == "repeat" { depth += 1 }
      if first == "end" {
        depth -= 1
        if depth == 0 { return at }
      }
    }
    throw Fault("this repeat has no end")
  }

  func run(_ lines: ArraySlice<Substring>, _ number: Int64) throws {
    var at = lines.startIndex
    while at < lines.endIndex {
      defer { at += 1 }
      line = at + 1
      text = lines[at]
      let tokens = tokens(text, number)
      if tokens.isEmpty { continue }
      if tokens[0] != "repeat" {
        try runLine(tokens)
        continue
      }
      if tokens.count != 2 && tokens.count != 3 { throw Fault("wrong number of tokens") }
      let last = try end(lines, at)
      let rounds = try integer(tokens[1])
      let first = tokens.count == 3 ? try integer(tokens[2]) : 0
      for i in first..<(first + rounds) { try run(lines[(at + 1)..<last], i) }
      at = last
    }
  }
}
