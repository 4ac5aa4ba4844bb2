// Metrics: batches one by one, their state, and what is refused.
import Foundation
import Testing
import onnxruntime_training_objc

private let scores: [Float] = [3, 1, 2, 0, 5, 4, 1, 2, 9, 6, 1, 1, 0, 1, 0]
private let classes: [Int64] = [0, 1, 2, 1, 1]

private func value<T>(_ numbers: [T], _ type: ORTTensorElementDataType, _ shape: [NSNumber]) throws -> ORTValue {
  let bytes = numbers.withUnsafeBytes { NSMutableData(bytes: $0.baseAddress!, length: $0.count) }
  return try ORTValue(tensorData: bytes, elementType: type, shape: shape)
}

private func count(_ metric: ORTMetric, _ rows: Range<Int>) throws {
  try metric.update(
    withPrediction: value(Array(scores[3 * rows.lowerBound..<3 * rows.upperBound]), .float, [NSNumber(value: rows.count), 3]),
    target: value(Array(classes[rows]), .int64, [NSNumber(value: rows.count)]), loss: nil)
}

private func result(_ metric: ORTMetric) throws -> [Double] { try metric.result().array(of: Double.self) }

@Suite struct MetricTests {
  @Test func batchesOfAnySizeGiveTheSameValueAndAStateContinues() throws {
    let whole = try ORTMetric(name: "accuracy", options: "")
    let first = try ORTMetric(name: "accuracy", options: ""), second = try ORTMetric(name: "accuracy", options: "")
    try count(whole, 0..<5)
    #expect(try result(whole) == [0.8])
    try count(first, 0..<1)
    try second.setState(try first.getState())
    try count(second, 1..<5)
    #expect(try result(second) == [0.8])
    try second.reset()
    #expect(try result(second)[0].isNaN)
    try count(second, 1..<5)
    try second.merge(with: first)
    #expect(try result(second) == [0.8])
  }

  @Test func whatDoesNotFitIsRefused() throws {
    expectFailure(.invalidArgument, "did you mean \"accuracy\"") { _ = try ORTMetric(name: "acuracy", options: "") }
    let metric = try ORTMetric(name: "top2", options: "")
    expectFailure(.invalidArgument, "expected the state of a metric, found 2 other bytes") {
      try metric.setState(Data([1, 2]))
    }
  }
}
