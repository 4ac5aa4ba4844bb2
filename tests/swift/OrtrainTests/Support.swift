// The basis of the tests: the recorded runs that run.sh prepared.
import Foundation
import Testing
import onnxruntime_training_objc

/// A recorded run: its artifacts, its batches, and its values.
struct Run: CustomTestStringConvertible, Sendable {
  struct Record: Decodable {
    struct Array: Decodable {
      let type: String
      let shape: [Int]
    }
    struct Schedule: Decodable {
      let warmup: Int64
      let total: Int64
      let initial_lr: Float
    }
    struct Parameter: Decodable {
      let shape: [Int]
      let l2: Double
    }
    let arrays: [String: Array]
    let scheduler: Schedule?
    let train_losses: [Double]
    let learning_rates: [Double]
    let eval_losses: [Double]?
    let parameters: [String: Parameter]
  }

  static let all = ["mlp_adamw", "mlp_sgd_sched", "lenet_adamw", "resnet_frozen"].map(Run.init)
  static let mlp = all[0]

  let name: String

  var testDescription: String { name }

  func path(_ file: String) -> String {
    "\(ProcessInfo.processInfo.environment["ORTRAIN_TEST_DATA"]!)/\(name)/\(file)"
  }

  func data(_ file: String) throws -> Data {
    try Data(contentsOf: URL(fileURLWithPath: path(file)))
  }

  func record() throws -> Record {
    try JSONDecoder().decode(Record.self, from: try data("run.json"))
  }

  func state() throws -> ORTCheckpoint {
    try ORTCheckpoint(path: path("checkpoint"))
  }

  func session(_ state: ORTCheckpoint) throws -> ORTTrainingSession {
    try ORTTrainingSession(
      env: try ORTEnv(loggingLevel: .error), sessionOptions: try ORTSessionOptions(), checkpoint: state,
      trainModelPath: path("training_model.onnx"), evalModelPath: path("eval_model.onnx"),
      optimizerModelPath: path("optimizer_model.onnx"))
  }

  func session() throws -> ORTTrainingSession {
    try session(try state())
  }

  func batch(_ step: Int) throws -> [ORTValue] {
    let record = try record()
    return try ["x", "y"].map { what in
      let array = try #require(record.arrays["\(what)\(step)"])
      return try ORTValue(
        tensorData: NSMutableData(data: try data("\(what)\(step).bin")), elementType: array.type == "float" ? .float : .int64,
        shape: array.shape.map { NSNumber(value: $0) })
    }
  }
}

/// Requires a call to fail with a code, and a message that has all of these parts.
func expectFailure(
  _ code: ORTErrorCode, _ parts: String..., from call: () throws -> Void, at place: SourceLocation = #_sourceLocation
) {
  do {
    try call()
    Issue.record("expected an error, found none", sourceLocation: place)
  } catch let error as NSError {
    #expect(error.domain == "onnxruntime", sourceLocation: place)
    #expect(error.code == Int(code.rawValue), "\(error.localizedDescription)", sourceLocation: place)
    for part in parts { #expect(error.localizedDescription.contains(part), sourceLocation: place) }
  }
}
