// The memory of thousands of cycles is freed; tests/scenarios checks this for the calls that every language has.
import Foundation
import Testing
import onnxruntime_training_objc

@Suite(.serialized) struct MemoryTests {
  /// Memory of the process in KiB.
  func resident() throws -> Int {
    let status = try String(contentsOfFile: "/proc/self/status", encoding: .utf8)
    let line = try #require(status.split(separator: "\n").first { $0.hasPrefix("VmRSS:") })
    return try #require(Int(line.split(separator: " ")[1]))
  }

  /// A leak of 52 bytes in each cycle.
  let limit = 256

  /// By how much memory grows in five thousand cycles after the first thousand, in KiB: the least of three times, since memory that
  /// Foundation or the system takes once is no leak.
  func growth(_ cycle: () throws -> Void) throws -> Int {
    for _ in 0..<1000 { try cycle() }
    return try (0..<3).map { _ in
      let before = try resident()
      for _ in 0..<5000 { try cycle() }
      return try resident() - before
    }.min()!
  }

  @Test func cyclesGiveEverythingBack() throws {
    let state = try Run.mlp.state()
    let session = try Run.mlp.session(state)
    let batch = try Run.mlp.batch(0)
    let names = try state.getParameterNames()
    let grown = try growth {
      let value = try ORTValue([Float](repeating: 1, count: 64), shape: [8, 8])
      _ = try value.array(of: Float.self)
      _ = try session.trainStep(withInputValues: batch)[0].tensorData().length
      _ = try session.toBuffer(withTrainable: true).tensorData() as Data
      _ = try state.getParameterGradient(withParameterName: names[0]).typeInfo()
      try state.addStringProperty(withName: "name", value: "a text that takes more than fifteen bytes")
      _ = try state.getStringProperty(withName: "name")
      _ = try session.getTrainInputNames()
      _ = try? session.trainStep(withInputValues: [batch[0]])
      _ = try? state.getParameter(withName: "nothing\0")
      _ = try? ORTValue(tensorData: NSMutableData(), elementType: .float, shape: [2])
    }
    #expect(grown < limit, "\(grown) KiB")
  }

  @Test func aSmallLeakWouldBeSeen() throws {
    var kept: [ORTValue] = []
    let grown = try growth { kept.append(try ORTValue([Float](repeating: 1, count: 16), shape: [16])) }
    #expect(grown > limit, "\(grown) KiB")
    #expect(kept.count == 16_000)
  }
}
