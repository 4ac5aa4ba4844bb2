// Two tasks and one session: an actor makes them take turns; without one the second gets an error, never a crash.
import Foundation
import Testing
import onnxruntime_training_objc

@Suite struct ConcurrencyTests {
  @Test func anActorOwnsASession() async throws {
    let trainer = ORTTrainer(try Run.mlp.session())
    let reference = try Run.mlp.session()
    try await withThrowingTaskGroup(of: Float.self) { group in
      for _ in 0..<8 {
        group.addTask {
          try await trainer.step(try Run.mlp.batch(0))[0].array(of: Float.self)[0]
        }
      }
      var losses: [Float] = []
      for try await loss in group { losses.append(loss) }
      var expected: [Float] = []
      for _ in 0..<8 {
        expected.append(try reference.trainStep(withInputValues: try Run.mlp.batch(0))[0].array(of: Float.self)[0])
        try reference.optimizerStep()
        try reference.lazyResetGrad()
      }
      #expect(losses.sorted() == expected.sorted())
    }
    let rate = try await trainer.perform { try $0.getLearningRate() }
    #expect(rate == (try reference.getLearningRate()))
  }

  @Test func aBusySessionIsRefused() throws {
    nonisolated(unsafe) let session = try Run.all[2].session()
    nonisolated(unsafe) let batch = try Run.all[2].batch(0)
    let lock = NSLock()
    nonisolated(unsafe) var (done, refused, other) = (0, 0, 0)
    DispatchQueue.concurrentPerform(iterations: 4) { _ in
      for _ in 0..<50 {
        do {
          try session.trainStep(withInputValues: batch)
          lock.withLock { done += 1 }
        } catch let error as NSError {
          let busy = error.domain == "onnxruntime" && error.localizedDescription.contains("another thread")
          lock.withLock { if busy { refused += 1 } else { other += 1 } }
        }
      }
    }
    #expect(done + refused == 200)
    #expect(done > 0)
    #expect(other == 0)
    try session.trainStep(withInputValues: batch)
  }
}
