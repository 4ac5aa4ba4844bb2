// The training loop under XCTest, which programs for Apple's systems are tested with.
import Foundation
import XCTest
import onnxruntime_training_objc

final class TrainingTests: XCTestCase {
  private func path(_ file: String) throws -> String {
    try XCTUnwrap(ProcessInfo.processInfo.environment["ORTRAIN_TEST_DATA"]) + "/mlp_adamw/\(file)"
  }

  func testTheLossFalls() throws {
    let state = try ORTCheckpoint(path: try path("checkpoint"))
    let session = try ORTTrainingSession(
      env: try ORTEnv(loggingLevel: .error), sessionOptions: nil, checkpoint: state,
      trainModelPath: try path("training_model.onnx"), evalModelPath: nil,
      optimizerModelPath: try path("optimizer_model.onnx"))
    try session.setLearningRate(0.01)
    let inputs = [
      try ORTValue((0..<16 * 64).map { Float($0 % 7) / 7 }, shape: [16, 64]),
      try ORTValue((0..<16).map { Int64($0 % 10) }, shape: [16]),
    ]
    var losses: [Float] = []
    for _ in 0..<100 {
      losses.append(try session.trainStep(withInputValues: inputs)[0].array(of: Float.self)[0])
      try session.optimizerStep()
      try session.lazyResetGrad()
    }
    XCTAssertLessThan(try XCTUnwrap(losses.last), 0.9 * losses[0])
  }

  func testAnErrorHasDomainCodeAndMessage() throws {
    XCTAssertThrowsError(try ORTCheckpoint(path: "/nowhere")) { error in
      let error = error as NSError
      XCTAssertEqual(error.domain, ORTErrorDomain)
      XCTAssertEqual(error.code, Int(ORTErrorCode.noSuchFile.rawValue))
      XCTAssertTrue(error.localizedDescription.contains("/nowhere"))
    }
  }
}
